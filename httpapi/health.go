package httpapi

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/process"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/httpapi/response"
)

// handleAlive handles GET /alive: the process responds.
func (s *Server) handleAlive(*call) (response.Response, error) {
	return response.OK(struct {
		Status string `json:"status"`
	}{"ok"})
}

// handleHealth handles GET /health. As upstream, the body is a JSON string.
func (s *Server) handleHealth(*call) (response.Response, error) { return response.OK("OK") }

// The modes of /ready: what a node is to serve.
const (
	readyWrite = "write" // writes and linearizable reads
	readyStale = "stale" // reads of its own store
	readyProxy = "proxy" // new connections to sandboxes
)

// handleReady handles GET /ready: 503 with the reason while this node can't serve the mode's
// requests. During a hold the response has the header X-Bivouac-Hold, with expired certificates
// X-Bivouac-Expired; neither makes a node unready.
func (s *Server) handleReady(c *call) (response.Response, error) {
	mode := c.Query.Enum("mode", readyWrite, []string{readyWrite, readyStale, readyProxy})
	status := c.Query.Enum("refuse", "503", []string{"503", "404"})
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if err := s.ready(mode); err != nil {
		refusal := &response.HTTPError{
			Status:     http.StatusServiceUnavailable,
			Text:       err.Error(),
			RetryAfter: time.Second,
			Cause:      err,
		}
		if status == "404" { // for HAProxy: nothing new, what is open goes on
			refusal.Status = http.StatusNotFound
		}
		return response.Response{}, refusal
	}
	v, err := c.ViewWith(cluster.Local)
	return response.Response{Stream: func(w http.ResponseWriter) error {
		if err == nil && v.Hold() != nil {
			w.Header().Set("X-Bivouac-Hold", "true")
		}
		if s.cfg.Expired != nil {
			if names := s.cfg.Expired(c.Now); len(names) > 0 {
				w.Header().Set("X-Bivouac-Expired", strings.Join(names, ", "))
			}
		}
		response.WriteJSON(w, http.StatusOK, []byte(`"OK"`))
		return nil
	}}, nil
}

// ready returns why this node can't serve the mode's requests.
func (s *Server) ready(mode string) error {
	if s.draining.Load() {
		return errors.New("this node is stopping")
	}
	switch mode {
	case readyStale:
		return s.cluster.ReadyStale()
	case readyProxy:
		return errors.Join(s.cluster.ReadyStale(), s.proxy.Ready())
	}
	return s.cluster.Ready()
}

// serverInfo is the response of GET /server_info (API.md, "Health"). Times are in seconds, sizes in
// bytes.
type serverInfo struct {
	Uptime    float64   `json:"uptime"`
	IdleTime  float64   `json:"idle_time"`
	Resources resources `json:"resources"`
}

type resources struct {
	CPUPercent float64 `json:"cpu_percent"`
	Memory     struct {
		RSS     uint64  `json:"rss"`
		VMS     uint64  `json:"vms"`
		Percent float32 `json:"percent"`
	} `json:"memory"`
	Disk struct {
		Total   uint64  `json:"total"`
		Used    uint64  `json:"used"`
		Free    uint64  `json:"free"`
		Percent float64 `json:"percent"`
	} `json:"disk"`
	IO struct {
		ReadBytes  uint64 `json:"read_bytes"`
		WriteBytes uint64 `json:"write_bytes"`
	} `json:"io"`
}

// handleServerInfo handles GET /server_info. Values that the system does not report are zero.
func (s *Server) handleServerInfo(c *call) (response.Response, error) {
	info := serverInfo{
		Uptime:   c.Now.Sub(s.started).Seconds(),
		IdleTime: c.Now.Sub(time.Unix(0, s.lastRequest.Load())).Seconds(),
	}
	if p, err := process.NewProcessWithContext(c.Ctx(), int32(os.Getpid())); err == nil {
		info.Resources.CPUPercent, _ = p.CPUPercentWithContext(c.Ctx())
		if m, err := p.MemoryInfoWithContext(c.Ctx()); err == nil {
			info.Resources.Memory.RSS, info.Resources.Memory.VMS = m.RSS, m.VMS
		}
		info.Resources.Memory.Percent, _ = p.MemoryPercentWithContext(c.Ctx())
		if io, err := p.IOCountersWithContext(c.Ctx()); err == nil {
			info.Resources.IO.ReadBytes, info.Resources.IO.WriteBytes = io.ReadBytes, io.WriteBytes
		}
	}
	if d, err := disk.UsageWithContext(c.Ctx(), "/"); err == nil {
		info.Resources.Disk.Total, info.Resources.Disk.Used = d.Total, d.Used
		info.Resources.Disk.Free, info.Resources.Disk.Percent = d.Free, d.UsedPercent
	}
	return response.OK(info)
}

// serveMetrics handles GET /metrics, in Prometheus's text format.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	s.exposition.ServeHTTP(w, r)
}
