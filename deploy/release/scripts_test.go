package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestScripts_StartNothing runs the packages' scripts as dpkg and rpm call them, with stand-ins for
// the programs of the system that note how they were called. systemd runs, as far as they can see.
func TestScripts_StartNothing(t *testing.T) {
	for _, test := range []struct {
		script string
		args   []string
		calls  string
		says   string
	}{
		{"preinstall", []string{"install"}, "getent group bivouac; groupadd --system bivouac; getent passwd bivouac; " +
			"useradd --system --gid bivouac --home-dir /var/lib/bivouac --no-create-home --shell /usr/sbin/nologin bivouac", ""},
		{"postinstall", []string{"configure", ""}, "systemctl daemon-reload", "not started"},
		{"postinstall", []string{"configure", "1.0.0"}, "systemctl daemon-reload", "one node after the other"},
		{"postinstall", []string{"1"}, "systemctl daemon-reload", "not started"},
		{"postinstall", []string{"2"}, "systemctl daemon-reload", "one node after the other"},
		{"preremove", []string{"upgrade", "1.0.0"}, "", ""},
		{"preremove", []string{"1"}, "", ""},
		{
			"preremove",
			[]string{"remove"},
			"systemctl disable --now bivouac.service; systemctl disable bivouac-sandbox-network.service",
			"",
		},
		{
			"preremove",
			[]string{"0"},
			"systemctl disable --now bivouac.service; systemctl disable bivouac-sandbox-network.service",
			"",
		},
		{"postremove", []string{"upgrade", "1.0.0"}, "", ""},
		{"postremove", []string{"1"}, "", ""},
		{"postremove", []string{"remove"}, "systemctl daemon-reload", "lib stays"},
		{"postremove", []string{"purge"}, "systemctl daemon-reload", "lib stays"},
		{"postremove", []string{"0"}, "systemctl daemon-reload", "lib stays"},
	} {
		t.Run(test.script+" "+strings.Join(test.args, " "), func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{"systemctl", "getent", "groupadd", "useradd", "rm", "chown"} {
				script := "#!/bin/sh\necho \"" + name + " $*\" >>" + dir + "/calls\n[ " + name + " != getent ]\n"
				if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			text := string(readFile(t, filepath.Join("scripts", test.script+".sh")))
			text = strings.NewReplacer("/run/systemd/system", dir, "/var/lib/bivouac /etc/bivouac;",
				dir+"/lib "+dir+"/etc;").Replace(text)
			for _, kept := range []string{"lib", "etc"} {
				if err := os.Mkdir(filepath.Join(dir, kept), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("/bin/sh", append([]string{"-c", text, "script"}, test.args...)...)
			cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), test.says) {
				t.Errorf("%v, without %q: %s", err, test.says, out)
			}
			calls, err := os.ReadFile(filepath.Join(dir, "calls"))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if got := strings.Join(strings.Split(strings.TrimSpace(string(calls)), "\n"), "; "); got != test.calls {
				t.Errorf("called %q, want %q", got, test.calls)
			}
		})
	}
}
