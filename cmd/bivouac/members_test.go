package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster"
)

// members returns "n1 n2 [n3]" as a node's operator sees it: nonvoters in brackets, silent ones
// with a star.
func (s *serverCluster) members(t testing.TB, n *serverNode) string {
	t.Helper()
	var list []cluster.Member
	text := mustRun(t, nil, "operator", "members", "--json", "--address", n.base, "--api-key-file", s.keyFile)
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var words []string
	for _, m := range list {
		word := m.Name
		if m.Role == cluster.RoleNonvoter {
			word = "[" + word + "]"
		}
		if m.Error != "" {
			word += "*"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func (s *serverCluster) awaitMembers(t testing.TB, n *serverNode, want string) {
	t.Helper()
	eventually(t, "the members are "+want, func() error {
		if got := s.members(t, n); got != want {
			return errors.New(got)
		}
		return nil
	})
}

// An operator's work with the members over the API: listing them, transferring leadership, a
// rejected removal, a new member in place of a dead one, and a revoked certificate.
func TestServer_OperatorChangesTheMembers(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	s.up(t, 0, 1, 2)
	first := s.nodes[0]
	flags := []string{"--address", first.base, "--api-key-file", s.keyFile}
	run := func(args ...string) string { return mustRun(t, nil, append(args, flags...)...) }
	refused := func(code int, want string, args ...string) {
		t.Helper()
		got, _, stderr := runCommand(t, nil, append(args, flags...)...)
		if got != code || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit %d, want %d with %q:\n%s", args, got, code, want, stderr)
		}
	}
	// A busy machine may hold an election in between, so these are retried.
	lead := func(next int, command ...string) {
		t.Helper()
		eventually(t, s.nodes[next].name+" leads", func() error {
			args := append(append([]string{"operator"}, command...), s.nodes[next].name)
			if code, _, stderr := runCommand(t, nil, append(args, flags...)...); code != exitOK {
				return errors.New(stderr)
			}
			if got := s.leader(t); got != next {
				return fmt.Errorf("%s leads", s.nodes[got].name)
			}
			return nil
		})
	}
	s.awaitMembers(t, first, "n1 n2 n3")
	for _, command := range [][]string{{"operator", "members"}, {"operator", "raft", "list-peers"}} {
		eventually(t, fmt.Sprint(command), func() error {
			table := run(command...)
			for _, want := range []string{"NODE", "CONTACT", "LAG", "leader", "voter"} {
				if !strings.Contains(table, want) {
					return fmt.Errorf("it lacks %s:\n%s", want, table)
				}
			}
			return nil
		})
	}
	for _, command := range []string{"transfer-leader", "raft transfer-leadership"} {
		lead((s.leader(t)+1)%3, strings.Fields(command)...)
	}
	eventually(t, "it says who leads", func() error {
		code, out, stderr := runCommand(t, nil, append([]string{"operator", "transfer-leader"}, flags...)...)
		if want := fmt.Sprintf("node %q leads now\n", s.nodes[s.leader(t)].name); code != exitOK || out != want {
			return fmt.Errorf("exit %d: %q and %q, want %q", code, out, stderr, want)
		}
		return nil
	})
	refused(exitFailed, "no node", "operator", "transfer-leader", "n9")
	refused(exitUsage, "nobody answered", "operator", "remove", "n3")
	refused(exitUsage, "must be a SHA-256", "operator", "remove", "n3", "--revoke", "--fingerprint", "ff")

	// n3 dies. Without n2 there would be no quorum, so the removal of n2 is rejected.
	lead(0, "transfer-leader")
	third := s.nodes[2]
	third.process.kill()
	s.awaitMembers(t, first, "n1 n2 n3*")
	refused(exitFailed, "n3 does not answer", "operator", "remove", "n2", "--yes")
	refused(exitFailed, "n3 does not answer", "operator", "raft", "remove-peer", "n1", "--yes")
	refused(exitFailed, "start it first", "operator", "replace", "n3", "n4", "--yes")

	// n4 joins, waits beside the dead member, and replaces it when the operator says so.
	fourth := s.add(t, "n4", freeAddress(t))
	fourth.start()
	fourth.ready(t)
	s.awaitMembers(t, first, "n1 n2 n3* [n4]")
	eventually(t, "n4 takes the place", func() error {
		code, _, stderr := runCommand(t, nil,
			append([]string{"operator", "replace", "n3", "n4", "--revoke", "--yes"}, flags...)...)
		if code != exitOK {
			return errors.New(stderr)
		}
		return nil
	})
	s.awaitMembers(t, first, "n1 n2 n4")

	// What was rejected stays rejected, also after a restart of all others.
	for _, n := range []*serverNode{first, s.nodes[1], fourth} {
		n.process.kill()
	}
	s.nodes = []*serverNode{first, s.nodes[1], fourth}
	s.up(t, 2, 1, 0)
	third.start()
	eventually(t, "n3 is told that its certificate is revoked", func() error {
		for _, n := range s.nodes {
			if strings.Contains(n.process.stderr.String(), "is revoked") {
				return nil
			}
		}
		return errors.New("nobody has said so")
	})
	if a, err := third.try(http.MethodGet, "/ready", nil); err == nil && a.status == http.StatusOK {
		t.Errorf("the removed node is ready: %s", a)
	}
	code, _, stderr := runCommand(t, nil, "operator", "remove", "n9", "--yes", "--config", third.config)
	if code != exitFailed {
		t.Errorf("a removal by the removed node: exit %d: %s", code, stderr)
	}
	// Another certificate does not help: whoever has the machine may be able to make them. Once the
	// operator allows the name, it can join again, with an empty directory.
	third.process.kill()
	mustRun(t, nil, "tls", "issue", "--dir", filepath.Join(s.dir, "tls"), "--node", "n3", "--host", "127.0.0.1")
	fresh := strings.Replace(readText(t, third.config), `data_dir         = "data"`, `data_dir         = "data2"`, 1)
	writeText(t, third.config, fresh)
	seen := func() (count int) {
		for _, n := range s.nodes {
			count += strings.Count(n.process.stderr.String(), "is revoked")
		}
		return count
	}
	before := seen()
	third.start()
	eventually(t, "n3's next certificate is refused", func() error {
		if seen() == before {
			return errors.New("nobody has said so")
		}
		return nil
	})
	if got := s.members(t, first); got != "n1 n2 n4" {
		t.Errorf("the revoked node is a member: %s", got)
	}
	refused(exitFailed, "is not revoked", "operator", "allow", "n33")
	run("operator", "allow", "n3")
	third.ready(t)
	s.awaitMembers(t, first, "n1 n2 n3 n4")
	fmt.Fprintln(t.Output(), run("operator", "members"))
}

func readText(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func writeText(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
