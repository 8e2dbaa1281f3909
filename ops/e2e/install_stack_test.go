//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

func (w *site) startVault(t *testing.T) {
	t.Helper()
	tool, err := local.Tool(t.Context(), "vault", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	w.begin(t, "vault", tool, "server", "-dev", "-dev-no-store-token", "-dev-root-token-id="+rootToken,
		"-dev-listen-address="+w.inside+"20:8200")
	w.answers(t, "http://"+w.inside+"20:8200/v1/sys/health")
}

// startNomad starts the operator's Nomad, with the configuration that is in client-1's /etc/nomad.d.
func (w *site) startNomad(t *testing.T) {
	t.Helper()
	tool, err := local.Tool(t.Context(), "nomad", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.nomadTool = tool
	w.mu.Unlock()
	config := fmt.Sprintf(`
name                 = "client-1"
data_dir             = %q
bind_addr            = "%s20"
disable_update_check = true
leave_on_terminate   = false
server {
  enabled          = true
  bootstrap_expect = 1
}
client {
  enabled           = true
  network_interface = %q
  min_dynamic_port  = 27000
  max_dynamic_port  = 27999
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
acl {
  enabled = true
}
`, filepath.Join(w.dir, "nomad"), w.inside, w.deviceName)
	if err := os.WriteFile(w.hosts["client-1"].root("/etc/nomad.d/nomad.hcl"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.endNomad(t) })
	if err := w.restartNomad(); err != nil {
		t.Fatal(err)
	}
	testcluster.Eventually(t, "Nomad's first token", func() error {
		body := strings.NewReader(`{"BootstrapSecret":"` + managementToken + `"}`)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+w.inside+"20:4646/v1/acl/bootstrap",
			body)
		if err != nil {
			return err
		}
		return succeeds(req)
	})
}

// restartNomad starts Nomad, again if it runs, with the files of client-1. It runs outside of that
// machine's file system, where Docker sees its folders.
func (w *site) restartNomad() error {
	client := w.host("client-1")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nomad != nil {
		_ = w.nomad.Process.Signal(syscall.SIGTERM)
		_ = w.nomad.Wait()
	}
	config := filepath.Join(w.dir, "nomad.d")
	if err := os.MkdirAll(config, 0o700); err != nil {
		return err
	}
	files, err := filepath.Glob(client.root("/etc/nomad.d/*.hcl"))
	if err != nil {
		return err
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		raw = bytes.ReplaceAll(raw, []byte("/var/lib/nomad"), []byte(filepath.Join(w.dir, "nomad")))
		if err := os.WriteFile(filepath.Join(config, filepath.Base(f)), raw, 0o600); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(filepath.Join(w.dir, "nomad.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	w.nomad = exec.Command(w.nomadTool, "agent", "-config="+config)
	w.nomad.Stdout, w.nomad.Stderr = log, log
	return w.nomad.Start()
}

// endNomad stops what the walk left of jobs, Nomad itself, and the sandboxes' network.
func (w *site) endNomad(t *testing.T) {
	t.Helper()
	ids, _ := exec.Command("docker", "ps", "--quiet", "--filter", "network=bivouac").Output()
	for _, id := range strings.Fields(string(ids)) {
		_ = exec.Command("docker", "rm", "--force", id).Run()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nomad != nil {
		_ = w.nomad.Process.Kill()
		_ = w.nomad.Wait()
	}
	if out, err := exec.Command("sh", "../../deploy/nomad/sandbox-network.sh", "down").CombinedOutput(); err != nil {
		t.Logf("the sandboxes' network: %v %s", err, out)
	}
	loaded, _ := filepath.Glob(filepath.Join(w.dir, "bivouac-sandbox-agent-*.oci.tar"))
	for _, file := range append(loaded, "bivouac-sandbox-agent-1-linux") {
		version, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(file), "bivouac-sandbox-agent-"), "-linux")
		tag := strings.NewReplacer("~", "-", "+", "-").Replace(version)
		_ = exec.Command("docker", "image", "rm", "--force", "bivouac/sandbox-agent:"+tag).Run()
	}
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], w.dir) {
			_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
		}
	}
}

// begin starts a program of the operator's.
func (w *site) begin(t *testing.T, name, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(w.dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{"HOME=" + w.dir, "PATH=" + os.Getenv("PATH")}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

func (w *site) answers(t *testing.T, url string) {
	t.Helper()
	testcluster.Eventually(t, url, func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		return succeeds(req)
	})
}

func succeeds(req *http.Request) error {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return nil
}
