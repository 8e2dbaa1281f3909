package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// required reports whether the environment requires the program (.ci/run does). Otherwise a
// test without it is skipped.
func required(program string) bool {
	return slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), program)
}

// stack is three `bivouac server` processes on a real Nomad and a real Vault.
type stack struct {
	*serverCluster
	nomad *local.Nomad
	vault *local.Vault
	// specs maps a driver to the sandbox's folder that is kept, "" to ask the sandbox.
	specs map[string]string
}

// startStack starts everything and stops it at the test's end.
func startStack(t *testing.T) *stack {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real Nomad and a real Vault")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	for _, program := range []string{"nomad", "vault"} {
		if _, err := local.Tool(ctx, program, os.Stderr); err != nil {
			if required(program) {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	s := &stack{specs: map[string]string{"raw": ""}}
	var err error
	if s.vault, err = local.StartVault(ctx,
		local.VaultOptions{Dir: filepath.Join(t.TempDir(), "vault"), Durable: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, "Vault", s.vault.Close) })
	if s.nomad, err = local.StartNomad(ctx,
		local.NomadOptions{Dir: filepath.Join(worldReadable(t), "nomad"), Vault: s.vault}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, "Nomad", s.nomad.Close) })
	role, err := s.vault.NewAppRole(ctx, local.AppRoleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.serverCluster = newServers(t,
		serverOptions{nomad: s.nomad.Address, vault: s.vault.Address, roleID: role.RoleID, secretID: role.SecretID,
			more: "llm {\n  hosts = [\"localhost\"]\n}\n"})
	s.tellURLs(t)
	s.up(t, 0, 1, 2)
	s.loadSpecs(ctx, t)
	return s
}

// tellURLs gives sandboxes the nodes' URLs: they ask models there and send events.
func (s *stack) tellURLs(t testing.TB) {
	t.Helper()
	var urls []string
	for _, n := range s.nodes {
		urls = append(urls, strconv.Quote(n.base))
	}
	for _, n := range s.nodes {
		text, err := os.ReadFile(n.config)
		if err == nil {
			text = fmt.Appendf(text, "sandboxes {\n  api_urls = [%s]\n}\n", strings.Join(urls, ", "))
			err = os.WriteFile(n.config, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func closed(t testing.TB, what string, end func() error) {
	if err := end(); err != nil {
		t.Errorf("stopping %s: %v", what, err)
	}
}

// worldReadable returns a directory that tasks of any user can enter.
func worldReadable(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bivouac-stack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// loadSpecs builds the agent server, and its image if Docker is reachable, and applies a spec
// for each driver with the program's own command.
func (s *stack) loadSpecs(ctx context.Context, t *testing.T) {
	t.Helper()
	dir := worldReadable(t)
	binary := filepath.Join(dir, "sandbox-agent")
	if err := local.BuildGo(ctx, "./cmd/sandbox-agent", binary); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`spec "raw" {
  driver      = "raw_exec"
  isolation   = "none"
  command     = %q
  args        = ["--host", "127.0.0.1", "--port", "${port.agent_server}"]
  working_dir = "project"
  cpu         = 100
  memory      = 128
  port "AGENT_SERVER" {}
}
`, binary)
	switch {
	case local.DockerReachable(ctx):
		image := fmt.Sprintf("bivouac-test/server:%d", os.Getpid())
		if err := local.BuildImage(ctx, binary, image); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closed(t, "the image", func() error { return local.RemoveImage(image) }) })
		s.specs["docker"] = "/workspace/project"
		text += fmt.Sprintf(`spec "docker" {
  driver       = "docker"
  image        = %q
  args         = ["--port", "${port.agent_server}"]
  working_dir  = "/workspace/project"
  cpu          = 100
  memory       = 128
  port "AGENT_SERVER" {
    container = 8000
  }
  volume {
    path = "/workspace"
  }
}
`, image)
	case required("docker"):
		t.Fatal("Docker is not reachable")
	}
	file := filepath.Join(dir, "specs.hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mustRun(t, nil, "specs", "apply", file, "--replace", "--address", s.nodes[1].base, "--api-key-file", s.keyFile)
}

// nomadJob is the part of a job listing that the tests read.
type nomadJob struct {
	ID, Status string
	Stop       bool
}

// jobs lists the jobs of sandboxes.
func (s *stack) jobs(t testing.TB) (list []nomadJob) {
	t.Helper()
	if err := s.nomad.Do(t.Context(), http.MethodGet, "jobs?prefix=sandbox-", nil, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestStack runs one stack through several failures. Its parts run one after the other, because
// each needs the whole stack.
func TestStack(t *testing.T) {
	t.Parallel()
	s := startStack(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"StatusAndDoctor", s.statusAndDoctor},
		{"EverySeedEndpointOnEveryNode", func(t *testing.T) { everySeedEndpoint(t, s.all()) }},
		{"SandboxKeepsItsFiles", s.keepsFiles},
		{"NoSecretOutsideVault", s.noSecretOutsideVault},
		{"LeaderKilledDuringCreation", s.leaderKilledDuringCreation},
		{"VaultSealed", s.vaultSealed},
		{"NomadAway", s.nomadAway},
		{"RestartInAnotherOrder", s.restart},
		{"NothingIsLeft", s.nothingIsLeft},
	} {
		if !t.Run(part.name, part.run) {
			break
		}
	}
	if t.Failed() {
		for _, n := range s.nodes {
			t.Logf("%s said last:\n%s", n.name, lastLines(n.process.stderr.String(), 40))
		}
	}
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (s *stack) keepsFiles(t *testing.T) {
	for spec, dir := range s.specs {
		t.Run(spec, func(t *testing.T) { lifeOfASandbox(t, s.all(), spec, dir) })
	}
}

// deleteAll deletes every sandbox and waits until Nomad has no job of them.
func (s *stack) deleteAll(t testing.TB) {
	t.Helper()
	list, err := s.nodes[0].sandboxes()
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range list {
		s.nodes[1].do(t, http.StatusOK, http.MethodDelete, "/api/v1/sandboxes/"+sb.ID, nil)
	}
	eventually(t, "Nomad has forgotten the sandboxes", func() error {
		if jobs := s.jobs(t); len(jobs) > 0 {
			return fmt.Errorf("it has %v", jobs)
		}
		return nil
	})
}

// leaderKilledDuringCreation kills the leader with SIGKILL while it starts a conversation's
// sandbox. The next leader finishes the task with one sandbox and one conversation.
func (s *stack) leaderKilledDuringCreation(t *testing.T) {
	known, err := s.nodes[0].conversations()
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		lost := s.leader(t)
		left := slices.Concat(s.nodes[:lost], s.nodes[lost+1:])
		id := left[0].startConversation(t, "hello")
		if round == 1 {
			eventually(t, "the task has its sandbox", func() error {
				task, err := left[1].startTask(id)
				if err == nil && task.SandboxID == nil {
					err = errors.New(task.Status)
				}
				return err
			})
		}
		s.nodes[lost].process.kill()
		task := left[1].awaitTask(t, id)
		info := left[0].awaitSandbox(t, *task.SandboxID, "RUNNING")
		s.nodes[lost].start()
		s.nodes[lost].ready(t)

		for _, n := range s.nodes {
			list, err := n.conversations()
			if err != nil || len(list) != len(known)+round+1 {
				t.Errorf("%s lists %d conversations, want %d: %v", n.name, len(list), len(known)+round+1, err)
			}
			sandboxes, err := n.sandboxes()
			if err != nil || len(sandboxes) != round+1 {
				t.Errorf("%s lists %d sandboxes, want %d: %v", n.name, len(sandboxes), round+1, err)
			}
		}
		if jobs := s.jobs(t); len(jobs) != round+1 {
			t.Errorf("Nomad has the jobs %v, want %d", jobs, round+1)
		}
		onlyConversation(t, info, *task.ConversationID)
	}
	s.deleteAll(t)
}

// vaultSealed: a request that needs a secret gets a 503 with Retry-After, the others succeed,
// and after the unseal everything works again.
func (s *stack) vaultSealed(t *testing.T) {
	nodes := s.all()
	nodes[0].do(t, http.StatusOK, http.MethodPost, "/api/settings",
		map[string]any{"language": "before", "llm_model": "m", "llm_api_key": "k"})
	running := nodes[0].startSandbox(t)
	nodes[0].awaitSandbox(t, running, "RUNNING")
	if err := s.vault.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the status says so", func() error {
		code, out, _ := runCommand(t, nil, "status", "--address", s.nodes[0].base, "--api-key-file", s.keyFile)
		if code != exitWrong || !strings.Contains(out, "n1, n2, n3: Vault is sealed: unseal it") {
			return fmt.Errorf("exit %d:\n%s", code, out)
		}
		return nil
	})
	for _, n := range nodes {
		for path, body := range map[string]any{
			"/api/settings":     map[string]any{"language": "half", "llm_api_key": "k2"},
			"/api/v1/sandboxes": nil,
		} {
			a := n.do(t, http.StatusServiceUnavailable, http.MethodPost, path, body)
			if a.header.Get("Retry-After") == "" {
				t.Errorf("POST %s on %s: 503 without Retry-After: %s", path, n.base, a)
			}
		}
		a := n.do(t, http.StatusOK, http.MethodGet, "/api/settings", nil)
		if !strings.Contains(string(a.body), `"language":"before"`) {
			t.Errorf("%s: something was half stored: %s", n.base, a)
		}
		n.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": "before", "llm_model": "m"})
		n.do(t, http.StatusOK, http.MethodGet, "/ready", nil)
	}
	if list, err := nodes[0].sandboxes(); err != nil || len(list) != 1 {
		t.Errorf("sandboxes while Vault was sealed: %v, %v", list, err)
	}
	nodes[1].do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+running+"/pause", nil)
	nodes[1].awaitSandbox(t, running, "PAUSED")
	if err := s.vault.Unseal(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		eventually(t, n.base+" stores secrets again", func() error {
			a, err := n.try(http.MethodPost, "/api/settings",
				map[string]any{"language": "after", "llm_model": "m", "llm_api_key": "k3"})
			if err == nil && a.status != http.StatusOK {
				err = errors.New(a.String())
			}
			return err
		})
	}
	nodes[2].do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+running+"/resume", nil)
	nodes[0].awaitSandbox(t, running, "RUNNING")
	s.deleteAll(t)
}

// nomadAway: a start is accepted and carried out when Nomad is back.
func (s *stack) nomadAway(t *testing.T) {
	nodes := s.all()
	kept := nodes[0].startSandbox(t)
	nodes[0].awaitSandbox(t, kept, "RUNNING")
	if err := s.nomad.Stop(); err != nil {
		t.Fatal(err)
	}
	id := nodes[1].startSandbox(t)
	eventually(t, "the sandbox says what it waits for", func() error {
		info, err := nodes[2].sandbox(id)
		if err == nil && (info.Status != "STARTING" || info.StatusDetail == nil) {
			err = fmt.Errorf("it is %s (%s)", info.Status, text(info.StatusDetail))
		}
		return err
	})
	nodes[0].do(t, http.StatusOK, http.MethodPost, "/api/settings",
		map[string]any{"language": "away", "llm_model": "m", "llm_api_key": "k"})
	if err := s.nomad.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes[2].awaitSandbox(t, id, "RUNNING")
	nodes[1].awaitSandbox(t, kept, "RUNNING")
	s.deleteAll(t)
}

// restart stops all nodes gracefully and starts them in another order.
func (s *stack) restart(t *testing.T) {
	id := s.nodes[0].startSandbox(t)
	s.nodes[0].awaitSandbox(t, id, "RUNNING")
	before := s.running(t, id)
	for _, n := range s.nodes {
		n.terminate(t)
	}
	if during := s.running(t, id); !slices.Equal(during, before) {
		t.Errorf("without nodes the allocations are %v, were %v", during, before)
	}
	s.up(t, 2, 1, 0)
	for _, n := range s.nodes {
		n.awaitSandbox(t, id, "RUNNING")
	}
	if after := s.running(t, id); len(after) != 1 || !slices.Equal(after, before) {
		t.Errorf("after the restart the allocations are %v, were %v", after, before)
	}
	s.deleteAll(t)
}

// running returns a sandbox's allocations that run or may still start.
func (s *stack) running(t testing.TB, id string) (ids []string) {
	t.Helper()
	var list []struct{ ID, DesiredStatus string }
	if err := s.nomad.Do(t.Context(), http.MethodGet, "job/sandbox-"+id+"/allocations", nil, &list); err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if a.DesiredStatus == "run" {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

// nothingIsLeft: a deleted sandbox leaves no job and no volume.
func (s *stack) nothingIsLeft(t *testing.T) {
	eventually(t, "the volumes are gone", func() error {
		var volumes []struct{ Name string }
		if err := s.nomad.Do(t.Context(), http.MethodGet, "volumes?type=host", nil, &volumes); err != nil {
			return err
		}
		if len(volumes) > 0 {
			return fmt.Errorf("there are %v", volumes)
		}
		return nil
	})
	for _, n := range s.nodes {
		n.terminate(t)
	}
}
