package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// Control sequences that every terminal of the last decades knows.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// screen is a terminal taken over for redrawing.
type screen struct {
	keys   chan byte
	before *term.State
	colour bool
}

// onTerminal says whether a person sits before the program.
func onTerminal() bool {
	return term.IsTerminal(int(os.Stdout.Fd())) && term.IsTerminal(int(os.Stdin.Fd())) && os.Getenv("TERM") != "dumb"
}

// openScreen takes the terminal over until close. Ctrl-C is a key then.
func openScreen() (*screen, error) {
	before, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return nil, fmt.Errorf("take the terminal over: %w", err)
	}
	s := &screen{keys: make(chan byte), before: before, colour: os.Getenv("NO_COLOR") == ""}
	fmt.Print(enterScreen)
	go func() {
		in := bufio.NewReader(os.Stdin)
		for {
			key, err := in.ReadByte()
			if err != nil {
				return // the terminal is gone: a signal follows
			}
			s.keys <- key
		}
	}()
	return s, nil
}

// close gives the terminal back as it was.
func (s *screen) close() {
	fmt.Print(leaveScreen)
	_ = term.Restore(int(os.Stdin.Fd()), s.before) // it is gone, then
}

// draw shows as many lines, and as much of each, as there is room for.
func (s *screen) draw(lines []line) {
	width, height, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || width == 0 || height == 0 {
		width, height = 80, 24
	}
	var out strings.Builder
	out.WriteString(home)
	for i, l := range lines[:min(len(lines), height)] {
		if i > 0 {
			out.WriteString("\r\n")
		}
		text := []rune(l.text)
		out.WriteString(s.styled(l.style, string(text[:min(len(text), width)])) + clearLine)
	}
	fmt.Print(out.String() + clearBelow)
}

func (s *screen) styled(style, text string) string {
	if style == stylePlain || !s.colour {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}
