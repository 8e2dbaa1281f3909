package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/deploy/local/ownprocess"
)

// quickly checks that an operation returns ErrUnavailable within the time limit, and returns its
// error.
func quickly(t *testing.T, s *Vault, what string) error {
	t.Helper()
	for _, op := range []func() error{
		func() error { _, err := s.Read(t.Context(), "users/u9/settings/x", 1, time.Time{}); return err },
		func() error {
			_, err := s.Write(t.Context(), "users/u9/settings/x", map[string]string{"value": "half"}, born)
			return err
		},
		func() error { return s.Delete(t.Context(), "users/u9/settings/x") },
		func() error { return s.Undelete(t.Context(), "users/u9/settings/x", 1) },
		func() error { _, err := s.Collect(t.Context(), born, always(Keep)); return err },
		func() error { _, _, _, err := s.ReadMark(t.Context()); return err },
		func() error { return s.WriteMark(t.Context(), Mark{Cluster: "c1"}, 0) },
		func() error { return s.Health(t.Context()) },
	} {
		begun := time.Now()
		err := op()
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", what, err)
		}
		if took := time.Since(begun); took > s.cfg.Timeout+time.Second {
			t.Errorf("%s: said so after %s", what, took)
		}
	}
	return s.Health(t.Context())
}

func TestVault_SealedStoppedKilled_IsUnavailableAndRecovers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := ownVault(t)
	s := run(t, config(t, server, local.AppRoleOptions{}))
	v := write(t, s, settingsPath, "kept")
	recovered := func(what string) {
		t.Helper()
		eventually(t, what, func() error { return s.Health(ctx) })
		s.cache.forget(settingsPath, []int{v})
		want(t, s, settingsPath, v, "kept")
		write(t, s, settingsPath, "new")
		want(t, s, "users/u9/settings/x", 1, "") // nothing is stored in part
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	must(server.Seal(ctx))
	if err := quickly(t, s, "sealed"); err == nil || !strings.Contains(err.Error(), "vault is sealed") {
		t.Errorf("the reason is not given: %v", err)
	}
	// A second node that starts while Vault is sealed logs in once Vault is unsealed.
	late := run(t, s.cfg)
	_ = quickly(t, late, "sealed at the start")
	must(server.Unseal(ctx))
	recovered("after unsealing")
	eventually(t, "the late node", func() error { return late.Health(ctx) })

	must(server.Kill())
	_ = quickly(t, s, "killed")
	must(server.StartSealed(ctx))
	_ = quickly(t, s, "killed and sealed")
	must(server.Unseal(ctx))
	recovered("after a kill")

	must(server.Stop())
	_ = quickly(t, s, "stopped")
	must(server.Start(ctx))
	recovered("after a stop")
}

func TestVault_Silent_IsUnavailableWithinTheTimeout(t *testing.T) {
	t.Parallel()
	cfg := config(t, sharedVault(t), local.AppRoleOptions{})
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never responds
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	cfg.Address, cfg.Timeout = "http://"+silent.Addr().String(), 300*time.Millisecond
	_ = quickly(t, run(t, cfg), "silent")
}

func TestVault_RevokedToken_LogsInAgain(t *testing.T) {
	t.Parallel()
	server := ownVault(t)
	s := run(t, config(t, server, local.AppRoleOptions{}))
	v := write(t, s, settingsPath, "a")
	for range 3 {
		if err := server.Do(t.Context(), http.MethodPost, "sys/leases/revoke-prefix/auth/approle", nil, nil); err != nil {
			t.Fatal(err)
		}
		s.cache.forget(settingsPath, []int{v})
		want(t, s, settingsPath, v, "a") // callers see no failure at all
	}
	if n := testutil.ToFloat64(s.metrics.logins.WithLabelValues("ok")); n < 2 {
		t.Errorf("%v logins", n)
	}
}

func TestVault_RenewsItsToken_AndLogsInAgainAtItsEnd(t *testing.T) {
	t.Parallel()
	server := sharedVault(t)
	renewed := run(t, config(t, server, local.AppRoleOptions{Period: "2s"}))
	t.Run("ending", func(t *testing.T) {
		t.Parallel()
		ending := run(t, config(t, server, local.AppRoleOptions{Period: "2s", MaxTTL: "3s"}))
		end := time.Now().Add(7 * time.Second)
		for time.Now().Before(end) {
			write(t, ending, settingsPath, "a")
			<-time.After(100 * time.Millisecond)
		}
		if n := testutil.ToFloat64(ending.metrics.logins.WithLabelValues("ok")); n < 2 {
			t.Errorf("%v logins in 7 s with a token that lives 3 s", n)
		}
	})
	t.Run("renewed", func(t *testing.T) {
		t.Parallel()
		end := time.Now().Add(7 * time.Second)
		for time.Now().Before(end) {
			write(t, renewed, settingsPath, "a")
			<-time.After(100 * time.Millisecond)
		}
		if n := testutil.ToFloat64(renewed.metrics.logins.WithLabelValues("ok")); n != 1 {
			t.Errorf("%v logins with a token that can be renewed for ever", n)
		}
	})
}

func TestVault_WrongSecretID_SaysSoAndTakesTheNextOne(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	cfg := config(t, sharedVault(t), local.AppRoleOptions{})
	cfg.Logger = log.logger()
	good, err := os.ReadFile(cfg.SecretIDFile)
	if err != nil {
		t.Fatal(err)
	}
	put := func(id string) {
		t.Helper()
		if err := os.WriteFile(cfg.SecretIDFile, []byte(id), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for id, says := range map[string]string{
		"canary-secret-id": "vault refuses the AppRole login at auth/approle (look at the " +
			"role id and the secret id in " + cfg.SecretIDFile,
		" \n": cfg.SecretIDFile + " is empty",
	} {
		put(id)
		s := run(t, cfg)
		err := quickly(t, s, "wrong secret id")
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "canary") {
			t.Errorf("got %v, want it to say %q", err, says)
		}
		put(string(good))
		eventually(t, "the right secret id", func() error { return s.Health(t.Context()) })
	}
	if text := log.String(); strings.Contains(text, "canary") || strings.Contains(text, strings.TrimSpace(string(good))) ||
		strings.Count(text, "level=ERROR") != 2 {
		t.Errorf("log:\n%s", text)
	}
}

// A secret id is replaced while the node runs: a wrong one changes nothing but the log, the right one
// gets a session of its own, and no operation fails meanwhile.
func TestVault_NewSecretID_GetsANewSession(t *testing.T) {
	t.Parallel()
	server, log := sharedVault(t), &logBuffer{}
	cfg := config(t, server, local.AppRoleOptions{})
	cfg.Logger = log.logger()
	s := run(t, cfg)
	token := func() string {
		current, err := s.session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return current.client.Token()
	}
	old := token()
	if err := os.WriteFile(cfg.SecretIDFile, []byte("canary-secret-id"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the wrong one is refused", func() error {
		if !strings.Contains(log.String(), "keeping the old session in vault") {
			return errors.New(log.String())
		}
		return s.Health(t.Context())
	})
	if is := token(); is != old {
		t.Error("a wrong secret id ended the session")
	}
	var made struct {
		Data struct {
			SecretID string `json:"secret_id"`
		}
	}
	role := strings.TrimPrefix(cfg.Prefix, "pre/")
	if err := server.Do(t.Context(), http.MethodPost, "auth/approle/role/"+role+"/secret-id", nil, &made); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.SecretIDFile, []byte(made.Data.SecretID), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a session by the new secret id", func() error {
		if token() == old {
			return errors.New("it is the old session")
		}
		return nil
	})
	if err := s.Health(t.Context()); err != nil || strings.Contains(log.String(), "canary") {
		t.Errorf("%v; log:\n%s", err, log.String())
	}
}

func TestVault_NothingThere_SaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*VaultConfig)
		says   string
	}{
		"mount":   {func(c *VaultConfig) { c.Mount = "nowhere" }, "denies"},
		"approle": {func(c *VaultConfig) { c.AuthMount = "nowhere" }, "auth/nowhere"},
		"prefix":  {func(c *VaultConfig) { c.Prefix = "others" }, "policy"},
		"role":    {func(c *VaultConfig) { c.RoleID = "no-such-role" }, "refuses the AppRole login"},
		"file":    {func(c *VaultConfig) { c.SecretIDFile += ".none" }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, sharedVault(t), local.AppRoleOptions{})
			tc.change(&cfg)
			s := run(t, cfg)
			_, err := s.Write(t.Context(), settingsPath, map[string]string{"value": "canary-value"}, born)
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), tc.says) ||
				strings.Contains(err.Error(), "canary") {
				t.Errorf("got %v, want it to say %q", err, tc.says)
			}
		})
	}
}

func TestNewVault_RefusesBadConfiguration(t *testing.T) {
	t.Parallel()
	good := VaultConfig{Address: "http://127.0.0.1:1", RoleID: "r", SecretIDFile: "f"}
	for says, change := range map[string]func(*VaultConfig){
		"no address":                func(c *VaultConfig) { c.Address = "" },
		"role id":                   func(c *VaultConfig) { c.RoleIDFile = "x" },
		"no secret id file":         func(c *VaultConfig) { c.SecretIDFile = "" },
		"lies in the folder":        func(c *VaultConfig) { c.Prefix = "default/bivouac" },
		"can't be negative":         func(c *VaultConfig) { c.Timeout = -1 },
		"no such file or directory": func(c *VaultConfig) { c.CAFile = "/no/such/file" },
		"holds no certificate":      func(c *VaultConfig) { c.CAFile = "/dev/null" },
	} {
		cfg := good
		change(&cfg)
		if _, err := NewVault(cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want it to say %q", err, says)
		}
	}
}

func TestVault_TheAppRoleReachesNothingElse(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := sharedVault(t)
	s := newStore(t)
	write(t, s, settingsPath, "a")
	session, err := s.session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	token := session.client.Token()
	do := func(method, path string) error {
		return server.DoAs(ctx, token, method, "secret/"+path, map[string]any{"data": map[string]string{"a": "b"}}, nil)
	}
	ns, prefix := s.cfg.NomadNamespace, s.cfg.Prefix
	for _, path := range []string{"a", "other/a", prefix + "-2/a", prefix, ns + "/other-job/a", ns + "/sandbox", "pre/a"} {
		if err := server.Do(ctx, http.MethodPost, "secret/data/"+path, map[string]any{"data": map[string]string{"a": "b"}},
			nil); err != nil {
			t.Fatal(err)
		}
		for _, request := range []string{
			"GET data/",
			"POST data/",
			"DELETE data/",
			"GET metadata/",
			"DELETE metadata/",
			"LIST metadata/",
		} {
			method, folder, _ := strings.Cut(request, " ")
			if method == "LIST" && path == prefix {
				continue // its own folder
			}
			var status *local.StatusError
			if err := do(method, folder+path); !errors.As(err, &status) || status.Status != http.StatusForbidden {
				t.Errorf("%s%s: %v, want 403", request, path, err)
			}
		}
	}
	for _, path := range []string{
		"sys/mounts",
		"sys/policies/acl/root",
		"auth/approle/role/" + role(s.cfg) + "/secret-id",
		"sys/seal",
	} {
		var status *local.StatusError
		err := server.DoAs(ctx, token, http.MethodPost, path, nil, nil)
		if !errors.As(err, &status) || status.Status != http.StatusForbidden {
			t.Errorf("%s: %v, want 403", path, err)
		}
	}
}

func TestVault_NoSecretInErrorsLogsAndMetrics(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := ownVault(t)
	log, registry := &logBuffer{}, prometheus.NewRegistry()
	cfg := config(t, server, local.AppRoleOptions{})
	cfg.Logger, cfg.Registerer = log.logger(), registry
	s := run(t, cfg)
	const canary = "canary-2b7e1516"
	data := map[string]string{"value": canary, canary: "as a name"}
	var said strings.Builder
	note := func(err error) { fmt.Fprintln(&said, err) }
	op := func(path string) {
		v, err := s.Write(ctx, path, data, born)
		note(err)
		_, err = s.Read(ctx, path, max(v.Number, 1), time.Time{})
		note(err)
		note(s.Delete(ctx, path))
	}
	op(settingsPath)
	op("not a path")
	if _, err := s.Write(ctx, settingsPath, map[string]string{"value": canary + strings.Repeat("x", MaxDataBytes)},
		born); err == nil {
		t.Error("too much was written")
	} else {
		note(err)
	}
	policy := map[string]string{"policy": `path "secret/nothing" { capabilities = ["read"] }`}
	if err := server.Do(ctx, http.MethodPost, "sys/policies/acl/"+role(cfg), policy, nil); err != nil {
		t.Fatal(err)
	}
	op(settingsPath)
	if err := server.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	op(settingsPath)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	op(settingsPath)

	session, _ := s.session(ctx)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	secretID, err := os.ReadFile(cfg.SecretIDFile)
	if err != nil {
		t.Fatal(err)
	}
	hidden := []string{canary, strings.TrimSpace(string(secretID))}
	if session != nil {
		hidden = append(hidden, session.client.Token())
	}
	all := said.String() + log.String() + fmt.Sprint(families) + fmt.Sprintf("%+v", cfg)
	for _, secret := range hidden {
		if strings.Contains(all, secret) {
			t.Errorf("%q is in:\n%s", secret, all)
		}
	}
	for _, kind := range []string{"sealed", "unreachable"} {
		if testutil.ToFloat64(s.metrics.errors.WithLabelValues(kind)) == 0 {
			t.Errorf("no error of kind %s in %s", kind, families)
		}
	}
}

func TestVault_TakesNothingFromTheEnvironment(t *testing.T) {
	// The process of its own uses the Vault of this one.
	const variable = "BIVOUAC_TEST_VAULT_CONFIG"
	made := os.Getenv(variable)
	if made == "" {
		raw, err := json.Marshal(config(t, sharedVault(t), local.AppRoleOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		made = string(raw)
	}
	if !ownprocess.Enter(t, variable+"="+made,
		"VAULT_TOKEN=nobody", "VAULT_NAMESPACE=nowhere", "VAULT_ADDR=http://127.0.0.1:1",
		"VAULT_AGENT_ADDR=http://127.0.0.1:1") {
		return
	}
	var cfg VaultConfig
	if err := json.Unmarshal([]byte(made), &cfg); err != nil {
		t.Fatal(err)
	}
	s := run(t, cfg)
	want(t, s, settingsPath, write(t, s, settingsPath, "a"), "a")
}

func TestVault_GivesItsTokenBack(t *testing.T) {
	t.Parallel()
	server := sharedVault(t)
	var token string
	t.Run("run", func(t *testing.T) {
		s := newStore(t)
		write(t, s, settingsPath, "a")
		session, err := s.session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		token = session.client.Token()
	})
	var status *local.StatusError
	err := server.DoAs(t.Context(), token, http.MethodGet, "auth/token/lookup-self", nil, nil)
	if !errors.As(err, &status) || status.Status != http.StatusForbidden {
		t.Errorf("the token of a stopped node: %v, want 403", err)
	}
}

func TestVault_SaysThatTheMountForgets(t *testing.T) {
	t.Parallel()
	server := ownVault(t)
	if err := server.Do(t.Context(), http.MethodPost, "secret/config", map[string]string{"delete_version_after": "1h"},
		nil); err != nil {
		t.Fatal(err)
	}
	log := &logBuffer{}
	cfg := config(t, server, local.AppRoleOptions{})
	cfg.Logger = log.logger()
	run(t, cfg)
	eventually(t, "the warning", func() error {
		if !strings.Contains(log.String(), "delete_version_after") {
			return io.EOF
		}
		return nil
	})
}

// A write never pushes out the version that the state names, however many were written since.
func TestVault_AVersionInUseIsNotPushedOut(t *testing.T) {
	t.Parallel()
	inUse := 0
	cfg := config(t, sharedVault(t), local.AppRoleOptions{})
	cfg.Timeout = time.Minute
	cfg.InUse = func(path string) int {
		if path != settingsPath {
			t.Errorf("asked about %s", path)
		}
		return inUse
	}
	s := run(t, cfg)
	inUse = write(t, s, settingsPath, "in use")
	fill(t, s, inUse)
	want(t, s, settingsPath, inUse, "in use")
	for range 3 {
		if v, err := s.Write(t.Context(), settingsPath, map[string]string{"value": "y"}, born); !errors.Is(err, ErrFull) ||
			errors.Is(err, ErrUnavailable) {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	s.cache.forget(settingsPath, []int{inUse})
	want(t, s, settingsPath, inUse, "in use")
	inUse = 2
	if next := write(t, s, settingsPath, "next"); next != maxVersions+1 {
		t.Errorf("version %d", next)
	}
}

// fill writes versions until the entry has as many as it keeps, as writes whose commands fail do.
func fill(t *testing.T, s *Vault, from int) {
	t.Helper()
	err := s.do(t.Context(), "write", func(ctx context.Context, session *session) error {
		for n := from; n < maxVersions; n++ {
			if _, err := session.kv.Put(ctx, s.physical(settingsPath), map[string]any{"value": "x"},
				api.WithCheckAndSet(n)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A write by any node does not push out a version that only a backup names, from the first collection on.
// Such a version is deleted reversibly and not destroyed. It may go once no backup names it.
func TestVault_AVersionThatABackupNamesIsNotPushedOut(t *testing.T) {
	t.Parallel()
	cfg := config(t, sharedVault(t), local.AppRoleOptions{})
	cfg.Timeout = time.Minute
	s, other := run(t, cfg), run(t, cfg)
	named := write(t, s, settingsPath, "of a backup")
	write(t, s, settingsPath, "in use")
	setGrace(s, time.Second)
	setRetention(s, 0)
	judge := func(e Entry) Verdict {
		switch e.Version {
		case named:
			return Unreferenced | Named
		case named + 1:
			return Keep | Named
		}
		return Leave
	}
	collect(t, s, judge, func(c Collected) error {
		if c.Deleted == 0 || entry(t,
			s.physical(settingsPath))["custom_metadata"].(map[string]any)[namedKey] != strconv.Itoa(named) {
			return errors.New("not yet")
		}
		return nil
	})
	later := Birth{Cluster: born.Cluster, Nonce: "n2", Index: 9}
	if _, err := other.Write(t.Context(), settingsPath, map[string]string{"value": "another term's"}, later); err != nil {
		t.Fatal(err)
	}
	fill(t, s, named+2)
	if v, err := other.Write(t.Context(), settingsPath, map[string]string{"value": "y"},
		later); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "backup") {
		t.Fatalf("%+v, %v", v, err)
	}
	if did, err := s.Collect(t.Context(), born, judge); err != nil || did.Destroyed != 0 {
		t.Errorf("%+v, %v", did, err)
	}
	if err := other.Undelete(t.Context(), settingsPath, named); err != nil {
		t.Fatal(err)
	}
	want(t, other, settingsPath, named, "of a backup")
	collect(t, s, func(e Entry) Verdict {
		if e.Version == named+1 {
			return Keep | Named
		}
		return Leave
	}, func(Collected) error { return nil })
	if next := write(t, other, settingsPath, "next"); next != maxVersions+1 {
		t.Errorf("version %d", next)
	}
}
