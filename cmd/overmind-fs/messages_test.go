package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logCalls returns the first argument of each call of a logger at level info or above in a file.
func logCalls(t *testing.T, files *token.FileSet, path string) []ast.Expr {
	t.Helper()
	file, err := parser.ParseFile(files, path, nil, 0)
	must(t, err)
	var found []ast.Expr
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if ok && slices.Contains([]string{"Info", "Warn", "Error"}, method.Sel.Name) {
			found = append(found, call.Args[0])
		}
		return true
	})
	return found
}

// Every message that the daemon can log at level info or above is in docs/operations.md, which says what to do about it.
func TestEveryMessageIsInOperations(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	must(t, err)
	files := token.NewFileSet()
	messages := 0
	for _, root := range []string{"../../fs", "../../cmd"} {
		must(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			for _, arg := range logCalls(t, files, path) {
				where := files.Position(arg.Pos())
				literal, ok := arg.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					t.Errorf("%s: the message is not a literal, so that it cannot be looked up", where)
					continue
				}
				message, err := strconv.Unquote(literal.Value)
				must(t, err)
				messages++
				if !strings.Contains(string(text), "`"+message+"`") {
					t.Errorf("%s: %q is not in docs/operations.md", where, message)
				}
			}
			return nil
		}))
	}
	if messages < 15 {
		t.Errorf("only %d messages were found", messages)
	}
}

// Every exit code is in docs/operations.md and in the help.
func TestExitCodesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	must(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), "exit.go", nil, 0)
	must(t, err)
	help := wantRun(t, exitOK, "Exit codes", "--help")
	codes := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		code, ok := spec.Values[0].(*ast.BasicLit)
		if !ok || code.Kind != token.INT {
			return true
		}
		codes++
		if !strings.Contains(string(text), "\n| "+code.Value+" |") || !strings.Contains(help, "\n   "+code.Value+": ") {
			t.Errorf("%s = %s is not documented", spec.Names[0], code.Value)
		}
		return true
	})
	if codes != 5 {
		t.Errorf("%d exit codes", codes)
	}
}
