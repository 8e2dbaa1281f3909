package testcluster

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
)

// Scraped is the label cluster of what it scrapes.
const Scraped = "tested"

// StartPrometheus starts a Prometheus that scrapes the targets every second, with the rules, if
// any, and returns a client of it. It ends with the test. Without an installed Prometheus the test
// is skipped.
func (f *Cluster) StartPrometheus(t testing.TB, targets []string, rules []byte) Client {
	t.Helper()
	binary, err := exec.LookPath("prometheus")
	Need(t, "prometheus", err == nil)
	dir := filepath.Join(f.Dir, "prometheus")
	must(t, os.Mkdir(dir, 0o700))
	config := filepath.Join(dir, "prometheus.yml")
	must(t, os.WriteFile(config, []byte(`global:
  scrape_interval: 1s
  scrape_timeout: 1s
rule_files: ["rules.yml"]
scrape_configs:
  - job_name: bivouac
    file_sd_configs:
      - files: ["targets.json"]
`), 0o600))
	must(t, f.Targets(targets))
	must(t, os.WriteFile(filepath.Join(dir, "rules.yml"), rules, 0o600))
	address := freeAddress(t)
	proc, err := local.Command{Name: "prometheus", Dir: dir, Path: binary, Args: []string{
		"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address,
	}}.Start()
	must(t, err)
	t.Cleanup(func() { must(t, proc.Kill()) })
	return Client{Base: "http://" + address}
}

// Targets replaces what StartPrometheus' Prometheus scrapes.
func (f *Cluster) Targets(targets []string) error {
	file := filepath.Join(f.Dir, "prometheus", "targets.json")
	text, err := json.Marshal([]any{
		map[string]any{"targets": targets, "labels": map[string]string{"cluster": Scraped}},
	})
	return errors.Join(err, os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file))
}
