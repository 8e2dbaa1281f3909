package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/deploy/local/ownprocess"
)

// fake is a tool with a module of three lines.
func fake(t *testing.T, code string) tool {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.org/fake\n\ngo 1.26\n", "main.go": code} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return tool{name: "bivouac-fake-tool", version: "1.2.3", oldest: "1.2.0", pkg: ".", source: dir}
}

const fakeCode = "package main\n\nfunc main() { println(\"Fake v1.2.3\") }\n"

type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func TestTool_Find_BuildsOnce(t *testing.T) {
	if !ownprocess.Enter(t) {
		return
	}
	t.Setenv("BIVOUAC_CACHE", t.TempDir())
	f := fake(t, fakeCode)
	said := &lines{}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			path, err := f.find(context.Background(), said)
			if err != nil || !isFile(path) || filepath.Base(path) != "bivouac-fake-tool-1.2.3" {
				t.Errorf("%q, %v", path, err)
			}
		})
	}
	wg.Wait()
	if n := strings.Count(said.text.String(), "from source"); n != 1 {
		t.Errorf("built %d times:\n%s", n, said.text.String())
	}
}

func TestTool_Find_FailedBuildLeavesNothing(t *testing.T) {
	if !ownprocess.Enter(t) {
		return
	}
	cache := t.TempDir()
	t.Setenv("BIVOUAC_CACHE", cache)
	f := fake(t, "package main\n\nfunc main() { broken }\n")
	if _, err := f.find(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "undefined: broken") {
		t.Errorf("a broken program: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.find(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a build that was interrupted: %v", err)
	}
	entries, err := os.ReadDir(filepath.Join(cache, "bin"))
	if err != nil || len(entries) != 1 || !strings.HasSuffix(entries[0].Name(), ".lock") {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestTool_Find_TakesWhatIsOnPathWhenRecentEnough(t *testing.T) {
	if !ownprocess.Enter(t) {
		return
	}
	for version, want := range map[string]bool{
		"1.1.9":     false,
		"1.2.0":     true,
		"1.2.3+ent": true,
		"1.10.0":    true,
		"2.0.0":     true,
		"0.9":       false,
	} {
		bin := t.TempDir()
		script := "#!/bin/sh\necho 'Fake v" + version + "'\n"
		path := filepath.Join(bin, "bivouac-fake-tool")
		if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
		t.Setenv("BIVOUAC_CACHE", t.TempDir())
		got, err := fake(t, fakeCode).find(t.Context(), nil)
		if err != nil || (got == path) != want {
			t.Errorf("%s on PATH: %q, %v; want it taken: %v", version, got, err, want)
		}
	}
}

func TestFreePort_GivesEachOnce(t *testing.T) {
	seen := map[int]bool{}
	for range 200 {
		p, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[p] || p < portMin || p >= portMax {
			t.Fatalf("port %d", p)
		}
		seen[p] = true
	}
}
