package secrets

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy"
	"bivouac.dev/bivouac/deploy/local"
)

// grant is one capability on one path of a policy.
type grant struct{ path, capability string }

func (g grant) String() string { return g.capability + " on " + g.path }

var (
	policyPath = regexp.MustCompile(`(?s)path "([^"]+)" \{\s*capabilities = \[([^\]]*)\]\s*\}`)
	policyWord = regexp.MustCompile(`"([a-z]+)"`)
)

// grants lists what a policy gives.
func grants(t *testing.T, policy string) []grant {
	t.Helper()
	var all []grant
	for _, m := range policyPath.FindAllStringSubmatch(policy, -1) {
		for _, c := range policyWord.FindAllStringSubmatch(m[2], -1) {
			all = append(all, grant{m[1], c[1]})
		}
	}
	if len(all) < strings.Count(policy, "capabilities = ") || len(all) == 0 {
		t.Fatalf("%d grants in\n%s", len(all), policy)
	}
	return all
}

// without returns the policy's grants but one, as a policy.
func without(all []grant, omit grant) string {
	var order []string
	byPath := map[string][]string{}
	for _, g := range all {
		if g == omit {
			continue
		}
		if byPath[g.path] == nil {
			order = append(order, g.path)
		}
		byPath[g.path] = append(byPath[g.path], `"`+g.capability+`"`)
	}
	var text strings.Builder
	for _, path := range order {
		fmt.Fprintf(&text, "path %q {\n  capabilities = [%s]\n}\n", path, strings.Join(byPath[path], ", "))
	}
	if text.Len() == 0 {
		return `path "none" { capabilities = ["deny"] }`
	}
	return text.String()
}

// operation is one thing that a node does in Vault.
type operation struct {
	name string
	do   func(ctx context.Context, v *Vault) error
}

// collecting is an operation of Collect without its look at the capabilities and without its times.
func collecting(name, path string, d decision) operation {
	return operation{name, func(ctx context.Context, v *Vault) error {
		return v.do(ctx, "collect", func(ctx context.Context, s *session) error {
			meta, err := s.kv.GetMetadata(ctx, v.physical(path))
			if err != nil {
				return err
			}
			p := &pass{birth: born, now: time.Now()}
			return v.carryOut(ctx, s, v.physical(path), meta, parseBirths(meta.CustomMetadata), d, p)
		})
	}}
}

// operations are everything that a node does in Vault, in both of its folders. Each goes on where the
// one before ended, or failed.
func operations() []operation {
	later := Birth{Cluster: born.Cluster, Nonce: "n2", Index: 9}
	write := func(name, path string, birth Birth) operation {
		return operation{name, func(ctx context.Context, v *Vault) error {
			_, err := v.Write(ctx, path, map[string]string{"value": "canary"}, birth)
			return err
		}}
	}
	var ops []operation
	for _, of := range []struct{ what, path string }{{"a setting", settingsPath}, {"a sandbox's key", sandboxPath}} {
		path := of.path
		ops = append(ops,
			write("write "+of.what, path, born),
			write("replace "+of.what+" in a later term", path, later),
			operation{"read " + of.what, func(ctx context.Context, v *Vault) error {
				_, err := v.Read(ctx, path, 1, time.Time{})
				return err
			}},
			operation{"look for versions of " + of.what, func(ctx context.Context, v *Vault) error {
				_, err := v.Newest(ctx, path)
				return err
			}},
			collecting("collect: delete "+of.what, path, decision{remove: []int{1}}),
			operation{"undelete " + of.what, func(ctx context.Context, v *Vault) error { return v.Undelete(ctx, path, 1) }},
			collecting("collect: stamp "+of.what, path, decision{stamp: []int{1}}),
			collecting("collect: destroy "+of.what, path, decision{destroy: []int{1, 2}}),
			operation{"delete " + of.what, func(ctx context.Context, v *Vault) error { return v.Delete(ctx, path) }},
			write("write "+of.what+" again after its deletion", path, later),
		)
	}
	const handOver = "users/u1/start_tasks/t1"
	return append(ops,
		write("write a hand-over", handOver, born),
		operation{"delete a hand-over", func(ctx context.Context, v *Vault) error { return v.Delete(ctx, handOver) }},
		operation{"list all entries", func(ctx context.Context, v *Vault) error { _, err := v.entries(ctx); return err }},
		operation{"write the mark", func(ctx context.Context, v *Vault) error {
			_, cas, _, err := v.ReadMark(ctx)
			if err != nil {
				return err
			}
			return errors.Join(v.WriteMark(ctx, Mark{Cluster: "c1"}, cas), v.WriteMark(ctx, Mark{Cluster: "c1"}, cas+1))
		}},
		operation{"look when the secret id ends", func(ctx context.Context, v *Vault) error {
			return v.do(ctx, "secret id", func(ctx context.Context, s *session) error {
				_, err := v.lookUpSecretID(ctx, s)
				return err
			})
		}},
		operation{"look whether the mount deletes by age", func(ctx context.Context, v *Vault) error {
			return v.do(ctx, "health", func(ctx context.Context, s *session) error { _, err := v.expiry(ctx, s); return err })
		}},
	)
}

// TestVaultPolicy_EachGrantIsNeeded: without any one of the grants of deploy/vault/bivouac.hcl an
// operation of a node fails, and with all of them none does.
func TestVaultPolicy_EachGrantIsNeeded(t *testing.T) {
	t.Parallel()
	server := sharedVault(t)
	run1 := func(t *testing.T, omit func(grant) bool) (failed []string) {
		cfg := config(t, server, local.AppRoleOptions{})
		at := "sys/policies/acl/" + role(cfg)
		var answer struct{ Data struct{ Policy string } }
		if err := server.Do(t.Context(), http.MethodGet, at, nil, &answer); err != nil {
			t.Fatal(err)
		}
		all := grants(t, answer.Data.Policy)
		var lacking grant
		for _, g := range all {
			if omit(grant{generic(g.path, cfg), g.capability}) {
				lacking = g
			}
		}
		if err := server.Do(t.Context(), http.MethodPost, at, map[string]string{"policy": without(all, lacking)},
			nil); err != nil {
			t.Fatal(err)
		}
		v := run(t, cfg)
		for _, op := range operations() {
			err := op.do(t.Context(), v)
			var denied *DeniedError
			switch {
			case errors.As(err, &denied):
				folder, _, _ := strings.Cut(strings.TrimRight(lacking.path, "*/"), "+")
				if !strings.HasPrefix(denied.Path, folder) || !strings.Contains(denied.Capability, lacking.capability) {
					t.Errorf("%s: %v; want it to name %s", op.name, err, lacking)
				}
				failed = append(failed, op.name)
			case err != nil && len(failed) == 0: // what follows a denied one may find less than it expects
				t.Errorf("%s: %v", op.name, err)
			}
		}
		return failed
	}
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		if failed := run1(t, func(grant) bool { return false }); len(failed) > 0 {
			t.Errorf("with the policy as it is shipped, Vault denies: %v", failed)
		}
	})
	for _, g := range grants(t, shipped(t, "vault/bivouac.hcl")) {
		t.Run("without "+strings.NewReplacer("*", "any", "+", "each").Replace(g.String()), func(t *testing.T) {
			t.Parallel()
			failed := run1(t, func(other grant) bool { return other == g })
			t.Logf("without %s: %s", g, strings.Join(failed, "; "))
			if len(failed) == 0 {
				t.Errorf("nothing needs %s: take it out of deploy/vault/bivouac.hcl", g)
			}
		})
	}
}

func shipped(t *testing.T, file string) string {
	t.Helper()
	raw, err := deploy.Files.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// generic puts the policy's words back in place of the test's names.
func generic(path string, cfg VaultConfig) string {
	mount, rest, _ := strings.Cut(path, "/")
	return strings.Replace(mount, "secret", "MOUNT",
		1) + "/" + strings.NewReplacer(cfg.Prefix, "PREFIX", cfg.NomadNamespace, "NOMAD_NAMESPACE").Replace(rest)
}

// TestVaultPolicy_AllElseIsRefused: what a node does not need is refused to its token.
func TestVaultPolicy_AllElseIsRefused(t *testing.T) {
	t.Parallel()
	server := sharedVault(t)
	cfg := config(t, server, local.AppRoleOptions{})
	v := run(t, cfg)
	s, err := v.session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	value := map[string]any{"data": map[string]any{"key": "stolen"}}
	for _, path := range []string{
		"secret/data/others/app",
		"secret/data/" + cfg.NomadNamespace + "/web/db",
		"secret/data/" + cfg.Prefix + "-2/a/b",
	} {
		if err := server.Do(t.Context(), http.MethodPost, path, value, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, refused := range []struct {
		method, path string
		in           any
	}{
		{http.MethodGet, "secret/data/others/app", nil},
		{http.MethodPost, "secret/data/others/app", value},
		{http.MethodGet, "secret/data/" + cfg.Prefix + "-2/a/b", nil},
		{http.MethodGet, "secret/data/" + cfg.NomadNamespace + "/web/db", nil},
		{http.MethodPost, "secret/data/" + cfg.NomadNamespace + "/web/db", value},
		{http.MethodGet, "secret/metadata/" + cfg.NomadNamespace + "/web?list=true", nil},
		{http.MethodGet, "secret/metadata/?list=true", nil},
		{http.MethodGet, "secret/metadata/others?list=true", nil},
		{http.MethodPost, "secret/config", map[string]any{"delete_version_after": "1s"}},
		{http.MethodGet, "secret/subkeys/" + cfg.Prefix + "/users/u1", nil},
		{http.MethodGet, "sys/mounts", nil},
		{http.MethodPost, "sys/mounts/mine", map[string]any{"type": "kv"}},
		{http.MethodGet, "sys/auth", nil},
		{http.MethodGet, "sys/audit", nil},
		{http.MethodGet, "sys/policies/acl/" + role(cfg), nil},
		{
			http.MethodPost,
			"sys/policies/acl/" + role(cfg),
			map[string]string{"policy": `path "*" { capabilities = ["sudo"] }`},
		},
		{http.MethodPost, "sys/seal", nil},
		{http.MethodGet, "auth/approle/role/" + role(cfg) + "/role-id", nil},
		{http.MethodPost, "auth/approle/role/" + role(cfg) + "/secret-id", nil},
		{http.MethodPost, "auth/token/create", nil},
		{http.MethodGet, "identity/entity/id?list=true", nil},
	} {
		err := server.DoAs(t.Context(), s.client.Token(), refused.method, refused.path, refused.in, nil)
		var status *local.StatusError
		if !errors.As(err, &status) || status.Status != http.StatusForbidden {
			t.Errorf("%s %s: %v; want 403", refused.method, refused.path, err)
		}
	}
}

// TestVaultPolicy_Workload: a task reads the keys of its own job, and nothing else. Vault checks
// tokens that are signed as Nomad signs its workload identities.
func TestVaultPolicy_Workload(t *testing.T) {
	t.Parallel()
	server := sharedVault(t)
	w := newWorkloads(t, server)
	value := map[string]any{"data": map[string]any{"key": "k"}}
	const mine, beside, theirs = "agents/sandbox-1/session", "agents/sandbox-1", "agents/sandbox-2/session"
	for _, path := range []string{mine, beside, theirs, "default/sandbox-1/session"} {
		if err := server.Do(t.Context(), http.MethodPost, "secret/data/"+path, value, nil); err != nil {
			t.Fatal(err)
		}
	}
	token := w.login(t, "agents", "sandbox-1")
	if token == "" {
		t.Fatal("the task can't log in")
	}
	status := func(method, path string, in any) int {
		err := server.DoAs(t.Context(), token, method, path, in, nil)
		var s *local.StatusError
		if errors.As(err, &s) {
			return s.Status
		}
		if err != nil {
			t.Errorf("%s %s: %v", method, path, err)
		}
		return http.StatusOK
	}
	if got := status(http.MethodGet, "secret/data/"+mine, nil); got != http.StatusOK {
		t.Errorf("its own key: %d", got)
	}
	for _, path := range []string{beside, theirs, "default/sandbox-1/session"} {
		if got := status(http.MethodGet, "secret/data/"+path, nil); got != http.StatusForbidden {
			t.Errorf("reading %s: %d, want 403", path, got)
		}
	}
	if got := status(http.MethodPost, "secret/data/"+mine, value); got != http.StatusForbidden {
		t.Errorf("writing its own key: %d, want 403", got)
	}
	for _, path := range []string{
		"secret/metadata/agents/sandbox-1?list=true",
		"secret/metadata/agents?list=true",
		"sys/mounts",
		"secret/metadata/" + mine,
	} {
		if got := status(http.MethodGet, path, nil); got != http.StatusForbidden {
			t.Errorf("GET %s: %d, want 403", path, got)
		}
	}
	if w.login(t, "default", "sandbox-1") != "" {
		t.Error("a job of another namespace logs in")
	}
	// One permission less.
	all := grants(t, w.policy)
	if len(all) != 1 {
		t.Errorf("the policy gives %v, want one", all)
	}
	if err := server.Do(t.Context(), http.MethodPost, "sys/policies/acl/"+w.name,
		map[string]string{"policy": without(all, all[0])}, nil); err != nil {
		t.Fatal(err)
	}
	if got := status(http.MethodGet, "secret/data/"+mine, nil); got != http.StatusForbidden {
		t.Errorf("reading its key without %s: %d, want 403", all[0], got)
	}
}

// TestVaultPolicy_PKI: a node renews its own certificate, and no other's.
func TestVaultPolicy_PKI(t *testing.T) {
	t.Parallel()
	server := sharedVault(t)
	mount := fmt.Sprintf("pki-%d", calls.Add(1))
	do := func(method, path string, in any) {
		t.Helper()
		if err := server.Do(t.Context(), method, path, in, nil); err != nil {
			t.Fatal(err)
		}
	}
	do(http.MethodPost, "sys/mounts/"+mount,
		map[string]any{"type": "pki", "config": map[string]any{"max_lease_ttl": "87600h"}})
	do(http.MethodPost, mount+"/root/generate/internal",
		map[string]any{"common_name": "CA", "key_type": "ec", "ttl": "87600h"})
	for _, node := range []string{"node-1", "node-2"} {
		do(http.MethodPost, mount+"/roles/"+node, map[string]any{
			"allowed_domains": node + ".node.bivouac,server.bivouac", "allow_bare_domains": true, "key_type": "ec",
			"max_ttl": "720h", "no_store": true,
		})
	}
	cfg := config(t, server, local.AppRoleOptions{})
	policy := strings.NewReplacer("PKI", mount, "NODE", "node-1").Replace(shipped(t, "vault/pki.hcl"))
	do(http.MethodPost, "sys/policies/acl/"+role(cfg)+"-pki", map[string]string{"policy": policy})
	do(http.MethodPost, "auth/approle/role/"+role(cfg),
		map[string]any{"token_policies": []string{role(cfg), role(cfg) + "-pki"}})
	v := run(t, cfg)
	sign := func(node, name string) error {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{name}}, key)
		if err != nil {
			t.Fatal(err)
		}
		_, err = v.SignCertificate(t.Context(), CertificateRequest{
			Mount: mount, Role: node, CSR: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}),
			CommonName: name, DNSNames: []string{name}, TTL: time.Hour,
		})
		return err
	}
	if err := sign("node-1", "node-1.node.bivouac"); err != nil {
		t.Errorf("its own certificate: %v", err)
	}
	var denied *DeniedError
	if err := sign("node-2", "node-2.node.bivouac"); !errors.As(err, &denied) {
		t.Errorf("another node's: %v, want it denied", err)
	}
	if err := sign("node-1", "node-2.node.bivouac"); err == nil {
		t.Error("another node's name with its own role is signed")
	}
	s, err := v.session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/issue/node-1",
		"/sign-verbatim",
		"/root/sign-intermediate",
		"/roles/node-1",
		"/revoke",
		"/root/generate/internal",
	} {
		err := server.DoAs(t.Context(), s.client.Token(), http.MethodPost, mount+path, map[string]any{}, nil)
		var status *local.StatusError
		if !errors.As(err, &status) || status.Status != http.StatusForbidden {
			t.Errorf("POST %s: %v; want 403", path, err)
		}
	}
	do(http.MethodPost, "sys/policies/acl/"+role(cfg)+"-pki", map[string]string{"policy": without(nil, grant{})})
	if err := sign("node-1", "node-1.node.bivouac"); !errors.As(err, &denied) ||
		!strings.HasSuffix(denied.Path, "/sign/node-1") {
		t.Errorf("without its one path: %v", err)
	}
}

// workloads are tokens as Nomad's, and the role and policy of deploy/vault/nomad-workloads.hcl.
type workloads struct {
	server       *local.Vault
	key          *ecdsa.PrivateKey
	name, policy string
}

func newWorkloads(t *testing.T, server *local.Vault) *workloads {
	t.Helper()
	w := &workloads{server: server, name: fmt.Sprintf("workloads-%d", calls.Add(1))}
	var err error
	if w.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&w.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	do := func(method, path string, in, out any) {
		t.Helper()
		if err := server.Do(t.Context(), method, path, in, out); err != nil {
			t.Fatal(err)
		}
	}
	do(http.MethodPost, "sys/auth/"+w.name, map[string]any{"type": "jwt"}, nil)
	do(http.MethodPost, "auth/"+w.name+"/config", map[string]any{
		"jwt_validation_pubkeys": []string{string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))},
	}, nil)
	var mount struct{ Accessor string }
	do(http.MethodGet, "sys/auth/"+w.name, nil, &mount)
	w.policy = strings.NewReplacer("MOUNT", "secret", "ACCESSOR",
		mount.Accessor).Replace(shipped(t, "vault/nomad-workloads.hcl"))
	do(http.MethodPost, "sys/policies/acl/"+w.name, map[string]string{"policy": w.policy}, nil)
	do(http.MethodPost, "auth/"+w.name+"/role/"+w.name, map[string]any{
		"role_type": "jwt", "bound_audiences": []string{
			"vault.io",
		}, "user_claim": "/nomad_job_id", "user_claim_json_pointer": true,
		"bound_claims": map[string]string{"nomad_namespace": "agents"},
		"claim_mappings": map[string]string{
			"nomad_namespace": "nomad_namespace",
			"nomad_job_id":    "nomad_job_id",
			"nomad_task":      "nomad_task",
		},
		"token_type": "service", "token_period": "30m", "token_policies": []string{w.name},
	}, nil)
	return w
}

// login returns the token of a job's task, "" where Vault refuses it.
func (w *workloads) login(t *testing.T, namespace, job string) string {
	t.Helper()
	part := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	signed := part(map[string]string{"alg": "ES256", "typ": "JWT"}) + "." + part(map[string]any{
		"aud": "vault.io", "sub": "s", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		"nomad_namespace": namespace, "nomad_job_id": job, "nomad_task": "agent",
	})
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, w.key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := slices.Concat(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32)))
	var answer struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	in := map[string]string{"role": w.name, "jwt": signed + "." + base64.RawURLEncoding.EncodeToString(signature)}
	err = w.server.DoAs(t.Context(), "", http.MethodPost, "auth/"+w.name+"/login", in, &answer)
	if status := (*local.StatusError)(nil); err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	return answer.Auth.Token
}
