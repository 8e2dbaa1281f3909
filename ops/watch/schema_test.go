package watch

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// schemaHead types a page as @grafana/schema has it. Plain is one of its types as JSON has it: an
// enumeration by its values. Prometheus adds members to a query.
const schemaHead = `import type { AnnotationQuery, Dashboard, DataQuery } from "@grafana/schema";
type Plain<T> = T extends string ? ` + "`${T}`" + ` : T extends number ? T | (number extends T ? number : never)
  : T extends (infer E)[] ? Plain<E>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
type Query = DataQuery & { expr: string; interval?: string };
type Page = Omit<Dashboard, "annotations"> & { annotations: { list: AnnotationQuery<Query>[] } };
export const page: Plain<Page> =
`

// TestDashboards_FitGrafanasSchema has TypeScript compare each page with the types of Grafana.
// "make grafana-schema" installs both.
func TestDashboards_FitGrafanasSchema(t *testing.T) {
	t.Parallel()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	installed := filepath.Join(cache, "bivouac", "grafana", "node_modules")
	compiler := filepath.Join(installed, ".bin", "tsc")
	if _, err := os.Stat(compiler); err != nil {
		if slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), "grafana-schema") {
			t.Fatal("BIVOUAC_TEST_REQUIRE has grafana-schema: make grafana-schema")
		}
		t.Skip("make grafana-schema installs what this test needs")
	}
	dir := t.TempDir()
	if err := os.Symlink(installed, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	files, err := Files(1, metricsPage(t))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"}
	for _, d := range Dashboards() {
		text := slices.Concat([]byte(schemaHead), bytes.TrimSpace(files["dashboards/"+d.Name+".json"]), []byte(";\n"))
		if err := os.WriteFile(filepath.Join(dir, d.Name+".ts"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, d.Name+".ts")
	}
	cmd := exec.CommandContext(t.Context(), compiler, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%.4000s", err, out)
	}
}
