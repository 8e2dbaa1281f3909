package main

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sys/unix"
)

// newRegistry makes one node's registry with the metrics of the Go runtime, the process and the
// build. Each node of `bivouac dev` has its own registry, so its /metrics shows that node.
func newRegistry(b buildInfo) *prometheus.Registry {
	r := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "bivouac_build_info",
		Help:        "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.Go},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// diskCollector reports the room of the file systems that the node writes to.
type diskCollector struct {
	// dirs are the directories by what they hold.
	dirs       map[string]string
	free, size *prometheus.Desc
}

func newDiskCollector(data, backup string) *diskCollector {
	c := &diskCollector{
		dirs: map[string]string{"data": data},
		free: prometheus.NewDesc("bivouac_disk_free_bytes",
			"Room that is left to this node in the file system of a directory, in bytes.", []string{"dir"}, nil),
		size: prometheus.NewDesc("bivouac_disk_size_bytes", "Size of the file system of a directory, in bytes.",
			[]string{"dir"}, nil),
	}
	if backup != "" {
		c.dirs["backup"] = backup
	}
	return c
}

// roomTimeout bounds what a scrape waits for a file system: one over a network may hang.
const roomTimeout = time.Second

// roomOf asks for the room of a directory's file system, or of the one in which it will be made. ok
// is false without an answer in time.
func roomOf(dir string, timeout time.Duration) (fs unix.Statfs_t, ok bool) {
	answer := make(chan unix.Statfs_t, 1)
	go func() {
		defer close(answer)
		var fs unix.Statfs_t
		err := unix.Statfs(dir, &fs)
		for ; errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir); err = unix.Statfs(dir, &fs) {
			dir = filepath.Dir(dir)
		}
		if err == nil {
			answer <- fs
		}
	}()
	select {
	case fs, ok = <-answer:
	case <-time.After(timeout):
	}
	return fs, ok
}

// Describe implements prometheus.Collector.
func (c *diskCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.free
	ch <- c.size
}

// Collect implements prometheus.Collector.
func (c *diskCollector) Collect(ch chan<- prometheus.Metric) {
	for name, dir := range c.dirs {
		fs, ok := roomOf(dir, roomTimeout)
		if !ok {
			continue // its file system is away
		}
		ch <- prometheus.MustNewConstMetric(c.free, prometheus.GaugeValue, float64(fs.Bavail)*float64(fs.Bsize), name)
		ch <- prometheus.MustNewConstMetric(c.size, prometheus.GaugeValue, float64(fs.Blocks)*float64(fs.Bsize), name)
	}
}
