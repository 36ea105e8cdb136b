package store

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// TotalMemory returns what the machine or the memory limit of the cgroup of this process holds, the smaller one, in
// bytes.
func TotalMemory() (uint64, error) { return totalMemory("/", cgroupLevels()) }

// MemoryOf returns what TotalMemory and Headroom are for another process, in bytes. root is where /proc and /sys are.
func MemoryOf(root string, pid int) (total, room uint64, err error) {
	levels := cgroupLevelsOf(root, strconv.Itoa(pid))
	if total, err = totalMemory(root, levels); err != nil {
		return 0, 0, err
	}
	room, err = headroom(root, levels)
	return total, room, err
}

func totalMemory(root string, levels []cgroup) (uint64, error) {
	info, err := keyedValues(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0, err
	}
	total := info["MemTotal"] << 10
	for _, g := range levels {
		if limit, err := g.limit(); err == nil {
			total = min(total, limit)
		}
	}
	if total == 0 {
		return 0, errors.New("/proc/meminfo has no MemTotal")
	}
	return total, nil
}

// Headroom returns how many bytes can be taken before the machine or a cgroup above this process runs out. Page cache
// counts as free, because the kernel gives it up.
func Headroom() (uint64, error) { return headroom("/", cgroupLevels()) }

func headroom(root string, levels []cgroup) (uint64, error) {
	info, err := keyedValues(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0, err
	}
	available, ok := info["MemAvailable"]
	if !ok {
		return 0, errors.New("/proc/meminfo has no MemAvailable")
	}
	room := available << 10
	for _, g := range levels {
		if left, err := g.headroom(); err == nil {
			room = min(room, left)
		}
	}
	return room, nil
}

// PressureFiles returns the files that tell of a shortage of memory on the machine, and in each cgroup of this process
// that has a memory limit (version 2 only). They need not exist.
func PressureFiles() []string {
	files := []string{"/proc/pressure/memory"}
	for _, g := range cgroupLevels() {
		limit, err := g.limit()
		if err == nil && limit < unlimited && g.pressureFile != "" {
			files = append(files, filepath.Join(g.dir, g.pressureFile))
		}
	}
	return files
}

// Scarce says whether the machine, or a cgroup of this process that has a limit, has less than a sixteenth of its memory
// free. Page cache counts as used: where the kernel has to take that back, processes wait.
func Scarce() (bool, error) {
	info, err := keyedValues("/proc/meminfo")
	if err != nil {
		return false, err
	}
	if info["MemFree"] < info["MemTotal"]/16 {
		return true, nil
	}
	for _, g := range cgroupLevels() {
		limit, err := g.limit()
		if err != nil || limit >= unlimited {
			continue
		}
		if used, err := g.read(g.usageFile); err == nil && shortfall(limit, used) < limit/16 {
			return true, nil
		}
	}
	return false, nil
}

// unlimited is more than any limit that somebody set; version 1 says "none" by a huge number.
const unlimited = math.MaxInt64 / 2

// cgroup is one level of the memory hierarchy; version 1 and 2 differ in the names of the files only.
type cgroup struct {
	dir               string
	limitFile         string
	throttleFile      string // a limit past which processes are slowed down; "" in version 1
	usageFile         string
	pressureFile      string // "" in version 1
	inactive, actives string // keys of memory.stat
}

func (g cgroup) limit() (uint64, error) {
	limit, err := g.read(g.limitFile)
	if err != nil || g.throttleFile == "" {
		return limit, err
	}
	if throttle, err := g.read(g.throttleFile); err == nil {
		limit = min(limit, throttle)
	}
	return limit, nil
}

// read returns a number in bytes; "max" is the largest one.
func (g cgroup) read(name string) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		return 0, err
	}
	word := strings.TrimSpace(string(text))
	if word == "max" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(word, 10, 64)
}

func (g cgroup) headroom() (uint64, error) {
	limit, err := g.limit()
	if err != nil || limit > unlimited {
		return math.MaxUint64, err
	}
	used, err := g.read(g.usageFile)
	if err != nil {
		return 0, err
	}
	if stat, err := keyedValues(filepath.Join(g.dir, "memory.stat")); err == nil {
		used -= min(used, stat[g.inactive]+stat[g.actives])
	}
	return limit - min(limit, used), nil
}

// cgroupLevels returns the memory cgroups of this process, from its own up to the root of what is visible.
func cgroupLevels() []cgroup { return cgroupLevelsOf("/", "self") }

func cgroupLevelsOf(root, process string) []cgroup {
	text, err := os.ReadFile(filepath.Join(root, "proc", process, "cgroup"))
	if err != nil {
		return nil
	}
	var levels []cgroup
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var g cgroup
		var roots []string
		switch {
		case parts[1] == "":
			g = cgroup{
				limitFile: "memory.max", throttleFile: "memory.high",
				usageFile: "memory.current", pressureFile: "memory.pressure",
				inactive: "inactive_file", actives: "active_file",
			}
			roots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}
		case strings.Contains(","+parts[1]+",", ",memory,"):
			g = cgroup{
				limitFile: "memory.limit_in_bytes", usageFile: "memory.usage_in_bytes",
				inactive: "total_inactive_file", actives: "total_active_file",
			}
			roots = []string{"/sys/fs/cgroup/memory"}
		default:
			continue
		}
		for _, top := range roots {
			// In a container the path may be one of the host, and its own cgroup is the root; levels that do not
			// exist fail to be read and are skipped.
			for dir := filepath.Clean("/" + parts[2]); ; dir = filepath.Dir(dir) {
				g.dir = filepath.Join(root, top, dir)
				levels = append(levels, g)
				if dir == "/" {
					break
				}
			}
		}
	}
	return levels
}

// keyedValues reads lines "key[:] number ..." and skips others.
func keyedValues(path string) (map[string]uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	out := map[string]uint64{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			out[strings.TrimSuffix(words[0], ":")] = n
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return out, nil
}
