package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

// clusterConfig reads the configuration on a node.
func (n *serverNode) clusterConfig(t testing.TB) (c wire.Config) {
	t.Helper()
	n.do(t, http.StatusOK, http.MethodGet, configPath, nil).json(t, &c)
	return c
}

// Three real nodes whose files have other limits: the first leader's seed the cluster, and no later
// leader's come into force. Operators change it by its index.
func TestServer_TheConfigurationIsTheClusters(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	for i, n := range s.nodes {
		n.rewrite(t, func(text string) string {
			return text + fmt.Sprintf(
				"limits {\n  user {\n    running_sandboxes = %d\n  }\n}\ncors {\n  origins = [\"https://n%d.example\"]\n}\n",
				11+i,
				i+1,
			)
		})
	}
	for _, n := range s.nodes {
		n.rewrite(t, func(text string) string {
			return text + "llm {\n  hosts = [\"vendors\", \"192.0.2.7\"]\n  budgets {\n    per_user_day = 2.5\n  }\n}\n"
		})
	}
	s.up(t, 0, 1, 2)
	var seeded wire.Config
	eventually(t, "a leader's file seeds the cluster", func() error {
		if seeded = s.nodes[0].clusterConfig(t); seeded.Index == 0 {
			return errors.New("the configuration has no index")
		}
		return nil
	})
	if n := seeded.Limits.User.Running; n < 11 || n > 13 ||
		seeded.CORS.Origins[0] != fmt.Sprintf("https://n%d.example", n-10) {
		t.Fatalf("%+v is of no node's file", seeded)
	}
	if l := seeded.LLM; l == nil || !l.Gateway || fmt.Sprint(l.Hosts) != "[vendors 192.0.2.7]" ||
		l.Budgets.PerUserDay != 2.5 {
		t.Fatalf("the model gateway's is %+v", l)
	}
	for range 3 { // every node leads once at least
		was := s.leader(t)
		next := (was + 1) % 3
		s.nodes[was].do(t, http.StatusOK, http.MethodPut, "/api/v1/operator/transfer-leader",
			map[string]string{"to": s.nodes[next].name})
		eventually(t, "it leads", func() error {
			if s.leader(t) != next {
				return errors.New("not yet")
			}
			return nil
		})
		if 11+next != seeded.Limits.User.Running {
			s.nodes[next].process.awaitLog(t, "blocks of this node's file are the cluster's and are ignored")
			s.nodes[next].process.awaitLog(t,
				fmt.Sprintf("limits.user.running_sandboxes: in force %d, in the file %d", seeded.Limits.User.Running, 11+next))
		}
		for _, n := range s.nodes {
			if now := n.clusterConfig(t); now.Index != seeded.Index || now.Limits.User != seeded.Limits.User {
				t.Fatalf("%s leads, and %s has %+v, not %+v", s.nodes[next].name, n.name, now, seeded)
			}
		}
	}
	s.configCommands(t, seeded)
	s.configRace(t)
	for _, n := range s.nodes {
		n.process.kill()
	}
}

// configCommands tries `bivouac config` on the running cluster.
func (s *serverCluster) configCommands(t *testing.T, seeded wire.Config) {
	t.Helper()
	n := s.nodes[0]
	run := func(stdin string, args ...string) (int, string, string) {
		return runCommandWith(t, map[string]string{"BIVOUAC_ADDR": n.base, "BIVOUAC_API_KEY": n.key}, stdin,
			append([]string{"config"}, args...)...)
	}
	file := filepath.Join(s.dir, "cluster.hcl")
	code, got, stderr := run("", "get")
	if err := os.WriteFile(file, []byte(got), 0o600); code != exitOK || err != nil ||
		!strings.HasPrefix(got, fmt.Sprintf("# index %d\n", seeded.Index)) {
		t.Fatalf("exit %d, %v: %s %s", code, err, got, stderr)
	}
	if code, out, _ := run("", "diff", file); code != exitOK || out != "" {
		t.Errorf("the file that get printed differs: %s", out)
	}
	if code, out, _ := run("", "set", file); code != exitOK || !strings.Contains(out, "nothing was done") {
		t.Errorf("exit %d: %s", code, out)
	}
	edited := strings.Replace(got, "running_sandboxes = 1", "running_sandboxes = 7", 1)
	code, out, _ := run(edited, "diff", "-")
	if code != exitFailed || !strings.HasPrefix(out, "limits.user.running_sandboxes: in force 1") ||
		strings.Count(out, "\n") != 1 {
		t.Errorf("exit %d: %s", code, out)
	}
	code, out, stderr = run(edited, "set", "--check-index", fmt.Sprint(seeded.Index), "-")
	now := n.clusterConfig(t)
	if code != exitOK || now.Index <= seeded.Index || !strings.Contains(out, fmt.Sprintf("its index is %d", now.Index)) {
		t.Errorf("exit %d: %s%s", code, out, stderr)
	}
	if code, _, stderr = run(got, "set", "--check-index", fmt.Sprint(seeded.Index), "-"); code != exitFailed ||
		!strings.Contains(stderr, fmt.Sprintf("index is %d, not %d", now.Index, seeded.Index)) {
		t.Errorf("a stale index: exit %d: %s", code, stderr)
	}
	strict := strings.Replace(edited, `idle_timeout        = "never"`, `idle_timeout        = "30m"`, 1)
	if code, _, stderr = run(strict, "set", "-"); code != exitUsage ||
		!strings.Contains(stderr, "policy.idle_timeout: sandboxes will be paused or deleted sooner") {
		t.Errorf("a stricter policy without an answer: exit %d: %s", code, stderr)
	}
	if err := os.WriteFile(file, []byte(strict), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, _ = run("no\n", "set", file); code != exitFailed || n.clusterConfig(t).Index != now.Index {
		t.Errorf("no: exit %d", code)
	}
	open := strings.Replace(edited, "gateway = true", "gateway = false", 1)
	if code, _, stderr = run(open, "set", "-"); code != exitUsage ||
		!strings.Contains(stderr, "llm.gateway: users' model keys will be handed to their sandboxes") {
		t.Errorf("the gateway is turned off without an answer: exit %d: %s", code, stderr)
	}
	if code, out, stderr = run("", "set", "--yes", "--json", file); code != exitOK ||
		!strings.Contains(out, `"idle_timeout": "30m0s"`) {
		t.Errorf("exit %d: %s%s", code, out, stderr)
	}
	for text, says := range map[string]string{
		"": "has none of the blocks", "limits {\n  body_size = 2048\n}\n": "body_size", "http {\n}\n": "stdin:1",
		"cors {\n  origins = [\"x\"]\n}\n":     "must be an origin",
		"llm {\n  hosts = [\"http://x\"]\n}\n": "must be a host name",
	} {
		if code, _, stderr = run(text, "set", "--yes", "-"); code != exitUsage || !strings.Contains(stderr, says) {
			t.Errorf("%q: exit %d: %s", text, code, stderr)
		}
	}
}

// configRace lets two operators set the configuration on the index that both read, through two nodes,
// while leadership moves: no accepted change is lost.
func (s *serverCluster) configRace(t *testing.T) {
	t.Helper()
	for round := range 8 {
		at := s.nodes[0].clusterConfig(t)
		var all sync.WaitGroup
		status, set := [2]int{}, [2]wire.Config{}
		for i := range 2 {
			all.Go(func() {
				wants := at
				wants.Limits.User.Running = 100 + 10*round + i
				a, err := s.nodes[i].try(http.MethodPut, fmt.Sprintf("%s?cas=%d", configPath, at.Index), wants)
				if err == nil && a.status == http.StatusOK {
					err = decode(a, &set[i])
				}
				if status[i] = a.status; err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		leader := s.leader(t)
		_, _ = s.nodes[leader].try(http.MethodPut, "/api/v1/operator/transfer-leader",
			map[string]string{"to": s.nodes[(leader+1)%3].name})
		all.Wait()
		now := s.nodes[2].clusterConfig(t)
		switch {
		case status[0] == http.StatusOK && status[1] == http.StatusOK:
			t.Errorf("round %d: both changes on index %d were accepted: %d and %d", round, at.Index, set[0].Index, set[1].Index)
		case status[0] == http.StatusOK && now.Limits.User.Running != set[0].Limits.User.Running,
			status[1] == http.StatusOK && now.Limits.User.Running != set[1].Limits.User.Running:
			t.Errorf("round %d: %+v were answered with %v, and %d is in force", round, set, status, now.Limits.User.Running)
		}
		for i, code := range status {
			if code != http.StatusOK && code != http.StatusConflict && code != http.StatusServiceUnavailable {
				t.Errorf("round %d: operator %d got %d", round, i, code)
			}
		}
	}
}

// A file of the cluster's blocks becomes the same configuration again when it is printed.
func TestConfigInfo_PrintsWhatItReads(t *testing.T) {
	cfg, err := loadConfig("testdata/config/good_full.hcl")
	if err != nil {
		t.Fatal(err)
	}
	wants := cfg.installation()
	wants.LLM.Models = append(wants.LLM.Models, "a${b}", "%{if}", `d\e`, "$${f}", "é")
	path := filepath.Join(t.TempDir(), "cluster.hcl")
	if err := os.WriteFile(path, []byte(configHCL(wire.ConfigOf(wants))), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := new(program).clusterFile(path)
	if diff := wants.Differences(got); err != nil || len(diff) > 0 {
		t.Errorf("%v %+v", err, diff)
	}
	back, err := wire.ConfigOf(wants).Installation()
	if err != nil || !back.Equal(wants) {
		t.Errorf("%v %+v", err, wants.Differences(back))
	}
	if diff := (fsm.Installation{}).Differences(wants); len(diff) < 10 {
		t.Errorf("the file sets only %+v", diff)
	}
}
