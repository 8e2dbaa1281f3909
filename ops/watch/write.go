package watch

import (
	"os"
	"path/filepath"
	"regexp"
)

// provisioning tells Grafana where the dashboards are.
const provisioning = `# Written by go run ./ops/watch/generate. Copy it to /etc/grafana/provisioning/dashboards, and the
# JSON files beside it to the path below.
apiVersion: 1
providers:
  - name: bivouac
    folder: Bivouac
    type: file
    allowUiUpdates: false
    options:
      path: /var/lib/grafana/dashboards/bivouac
`

// metricRow is a row of METRICS.md: the name and what the metric is.
const metricRow = "(?m)^\\| `(bivouac_[a-z0-9_]+)` \\|.*\\| ([^|]*) \\|$"

// Files returns every generated file, by its path below ops. metrics is the text of METRICS.md.
func Files(s Scale, metrics string) (map[string][]byte, error) {
	help := map[string]string{}
	for _, row := range regexp.MustCompile(metricRow).FindAllStringSubmatch(metrics, -1) {
		help[row[1]] = row[2]
	}
	files := map[string][]byte{
		"alerts/bivouac.yml":           Rules(s),
		"dashboards/provisioning.yaml": []byte(provisioning),
	}
	for _, d := range Dashboards() {
		page, err := d.render(help)
		if err != nil {
			return nil, err
		}
		files["dashboards/"+d.Name+".json"] = page
	}
	return files, nil
}

// Write writes every generated file below a folder. metrics is the path of METRICS.md.
func Write(dir, metrics string, s Scale) error {
	text, err := os.ReadFile(metrics)
	if err != nil {
		return err
	}
	files, err := Files(s, string(text))
	if err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
