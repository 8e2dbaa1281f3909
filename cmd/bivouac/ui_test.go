package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestUI_OpensWhatTheFileNames(t *testing.T) {
	if p, err := (UIConfig{}).open(); p != nil || err != nil {
		t.Errorf("without the block: %v, %v", p, err)
	}
	// Beside the tests' program there is none.
	if p, err := (UIConfig{Enabled: true}).open(); err != nil || !p.IsMissing() {
		t.Errorf("without a page: %v, %v", p, err)
	}
	nowhere := filepath.Join(t.TempDir(), "page")
	_, err := (UIConfig{Enabled: true, Directory: nowhere}).open()
	if err == nil || !strings.Contains(err.Error(), nowhere) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if p, err := (UIConfig{Directory: nowhere}).open(); p != nil || err != nil {
		t.Errorf("switched off: %v, %v", p, err)
	}
	want := "/usr/share/bivouac/page /usr/bin/page"
	if got := strings.Join(pageDirs("/usr/bin/bivouac"), " "); got != want {
		t.Errorf("a package's program looks in %s, want %s", got, want)
	}
}

func TestUI_CheckSaysWhatIsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		ui   UIConfig
		want string
	}{
		"no block":  {UIConfig{}, ""},
		"no page":   {UIConfig{Enabled: true}, checkWarn},
		"no folder": {UIConfig{Enabled: true, Directory: filepath.Join(t.TempDir(), "page")}, checkFail},
	} {
		i := &inspection{now: time.Now()}
		i.ui(test.ui)
		got := ""
		for _, f := range i.found {
			got += f.Result
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
