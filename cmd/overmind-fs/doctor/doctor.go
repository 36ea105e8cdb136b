// Package doctor looks for what makes a cache slower or less safe than it could be, and says what each thing costs and
// what mends it. What it looks at is gathered first, so that the checks are functions of it.
package doctor

import "slices"

// Severity says how bad a finding is.
type Severity string

// The severities, worst first. A Note costs nothing as things are.
const (
	Error   Severity = "error"   // it does not work, or is not safe
	Warning Severity = "warning" // slower or less safe than it could be
	Note    Severity = "note"
)

// Finding is one thing that could be better.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	Where    string   `json:"where"` // a mount, or "" for the machine
	What     string   `json:"what"`
	Cost     string   `json:"cost"` // what it costs
	Fix      string   `json:"fix"`  // the command that mends it, or what to do where no command can
}

// Access is how programs reach the arenas of a cache, as the loader calls it in stats().
type Access struct {
	Where string `json:"where"`
	Way   string `json:"way"` // passthrough, fd, read, or directory: a cache without a daemon
}

// Report is what an examination found.
type Report struct {
	Checks   []string  `json:"checks"` // all that were made
	Findings []Finding `json:"findings"`
	Access   []Access  `json:"access"`
}

// Problems counts the findings that are more than notes.
func (r Report) Problems() int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity != Note {
			n++
		}
	}
	return n
}

type machineCheck struct {
	name string
	run  func(Machine) []Finding
}

type mountCheck struct {
	name string
	run  func(Machine, Mount) []Finding
	dead bool // also of a mount that does not answer
}

var machineChecks = []machineCheck{
	{"environment", environment},
	{"kernel", kernel},
	{"mounting", mounting},
	{"fuse.conf", fuseConf},
	{"shell limits", shellLimits},
	{"swap", swap},
	{"overcommit", overcommit},
	{"python packages", packages},
}

var mountChecks = []mountCheck{
	{name: "mount", run: health, dead: true},
	{name: "passthrough", run: passthrough},
	{name: "fd passing", run: fdPassing},
	{name: "huge pages", run: hugePages},
	{name: "budget", run: budget},
	{name: "memory", run: memory},
	{name: "memory pressure", run: pressure},
	{name: "daemon limits", run: daemonLimits},
	{name: "control socket", run: socket},
	{name: "versions", run: versions},
	{name: "entries", run: entries},
}

// Examine makes all checks. The worst findings come first.
func Examine(m Machine, mounts []Mount) Report {
	r := Report{Findings: []Finding{}, Access: []Access{}}
	add := func(check, where string, found []Finding) {
		for _, f := range found {
			f.Check, f.Where = check, where
			r.Findings = append(r.Findings, f)
		}
	}
	m.answering = slices.ContainsFunc(mounts, Mount.alive)
	for _, c := range machineChecks {
		r.Checks = append(r.Checks, c.name)
		add(c.name, "", c.run(m))
	}
	for _, c := range mountChecks {
		r.Checks = append(r.Checks, c.name)
		for _, mount := range mounts {
			if c.dead || mount.Looked {
				add(c.name, mount.Dir, c.run(m, mount))
			}
		}
	}
	for _, mount := range mounts {
		if way := mount.access(); way != "" {
			r.Access = append(r.Access, Access{mount.Dir, way})
		}
	}
	order := []Severity{Error, Warning, Note}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return slices.Index(order, a.Severity) - slices.Index(order, b.Severity)
	})
	return r
}
