package fs

import (
	"bytes"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
)

// collector turns a status into Prometheus metrics.
type collector struct {
	tree *tree
}

var _ prometheus.Collector = collector{}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("overmind_"+name, help, labels, nil)
}

var (
	descInfo        = desc("build_info", "Version of the daemon.", "version")
	descMaxBytes    = desc("max_bytes", "Budget.")
	descMaxEntries  = desc("max_entries", "Limit of entries, 0 for none.")
	descTTL         = desc("ttl_seconds", "How long idle entries stay, 0 for no limit.")
	descBytes       = desc("bytes", "Memory held, by what for.", "state")
	descPinned      = desc("pinned_bytes", "Part of the cached bytes that is never evicted to make room.")
	descShared      = desc("shared_bytes", "What the entries would take more if each had all of its arenas for itself.")
	descEntries     = desc("entries", "Published entries.")
	descStagings    = desc("stagings", "Fills under way.")
	descLeases      = desc("leases", "Open handles on published arenas.")
	descPassthrough = desc("passthrough_active", "1 if the kernel serves arenas itself.")
	descFDPassing   = desc("fd_passing_active", "1 if arenas are handed out over the control socket.")
	descHugePages   = desc("huge_pages_active", "1 if new arenas get huge pages.")
	descPressure    = desc("pressure_active", "1 if memory pressure evicts idle entries.")
	descStarted     = desc("fills_started_total", "Fills that were begun.")
	descFills       = desc("fills_total", "Fills that have ended, by what became of them.", "result")
	descFillSeconds = desc("fill_seconds_total", "What the uncached loads of committed fills took.")
	descFillBytes   = desc("fill_bytes_total", "Bytes of committed fills.")
	descEvictions   = desc("evictions_total", "Entries that left, by reason.", "reason")
	descRefused     = desc("refused_total", "Requests that did not fit.")
	descHits        = desc("hits_total", "Loads of published entries.")
	descMisses      = desc("misses_total", "Lookups of entries that were not there; one load may look more than once.")
	descEvents      = desc("pressure_events_total", "Times that there was memory pressure.")
	descReads       = desc("arena_reads_total", "Reads of arenas that the daemon served itself.")
	descWrites      = desc("arena_writes_total", "Writes of arenas that the daemon served itself.")
)

// Describe lists the metrics.
func (c collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect reads the current values.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.tree.status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descInfo, 1, s.Version)
	gauge(descMaxBytes, float64(s.Limits.MaxBytes))
	gauge(descMaxEntries, float64(s.Limits.MaxEntries))
	gauge(descTTL, s.Limits.TTLS)
	gauge(descBytes, float64(s.Bytes.Cached), "cached")
	gauge(descBytes, float64(s.Bytes.Staging), "staging")
	gauge(descBytes, float64(s.Bytes.Draining), "draining")
	gauge(descPinned, float64(s.Bytes.Pinned))
	gauge(descShared, float64(s.Bytes.Shared))
	gauge(descEntries, float64(s.Entries))
	gauge(descStagings, float64(s.Fills.Staging))
	gauge(descLeases, float64(s.Leases))
	gauge(descPassthrough, truth(s.Passthrough.Active))
	gauge(descFDPassing, truth(s.FDPassing.Active))
	gauge(descHugePages, truth(s.HugePages.Active))
	gauge(descPressure, truth(s.Pressure.Active))
	counter(descStarted, s.Fills.Started)
	counter(descFills, s.Fills.Committed, "committed")
	counter(descFills, s.Fills.Failed, "failed")
	ch <- prometheus.MustNewConstMetric(descFillSeconds, prometheus.CounterValue, s.Fills.LoadS)
	counter(descFillBytes, s.Fills.Bytes)
	for reason, n := range s.Evictions {
		counter(descEvictions, n, string(reason))
	}
	counter(descRefused, s.Refused)
	counter(descHits, s.Hits)
	counter(descMisses, s.Misses)
	counter(descEvents, s.Pressure.Events)
	counter(descReads, c.tree.arenaReads.Load())
	counter(descWrites, c.tree.arenaWrites.Load())
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// newMetrics makes the registry: what the cache does, and what the daemon takes for it.
func newMetrics(t *tree) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{t}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Metrics are what the file metrics shows.
func (m *Mount) Metrics() prometheus.Gatherer { return m.tree.metrics }

// metricsText renders the metrics in the Prometheus text format.
func (t *tree) metricsText() ([]byte, error) {
	families, err := t.metrics.Gather()
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	var out bytes.Buffer
	enc := expfmt.NewEncoder(&out, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return out.Bytes(), nil
}
