package watch

import (
	"os"
	"path/filepath"
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

// Files returns every generated file, by its path below ops.
func Files(s Scale) (map[string][]byte, error) {
	files := map[string][]byte{
		"alerts/bivouac.yml":           Rules(s),
		"dashboards/provisioning.yaml": []byte(provisioning),
	}
	for _, d := range Dashboards() {
		page, err := d.render()
		if err != nil {
			return nil, err
		}
		files["dashboards/"+d.Name+".json"] = page
	}
	return files, nil
}

// Write writes every generated file below a folder.
func Write(dir string, s Scale) error {
	files, err := Files(s)
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
