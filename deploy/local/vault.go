package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// VaultOptions configures StartVault. Only Dir is required.
type VaultOptions struct {
	// Dir receives the data, the log and the keys. The same Dir and Port give the same Vault
	// again, with Durable.
	Dir string
	// Port is the API's port on 127.0.0.1; 0 is a free one.
	Port int
	// Durable keeps the data on disk (raft storage) over Kill and Start. Otherwise they are in
	// memory. Sealing works either way.
	Durable bool
	// Detach lets Vault outlive this process.
	Detach bool
	// Binary is the program; "" calls Tool.
	Binary string
	// Progress receives lines about slow steps; nil is silent.
	Progress io.Writer
}

// Vault is a running Vault server, initialised and unsealed, with KV version 2 at secret/ and
// AppRole at auth/approle/.
type Vault struct {
	Server
	// RootToken has all permissions; UnsealKey is the only key share.
	RootToken string
	UnsealKey string
}

// vaultKeys is the format of keys.json in a Vault's directory.
type vaultKeys struct {
	RootToken string `json:"root_token"`
	UnsealKey string `json:"unseal_key"`
}

// StartVault starts a Vault and returns when it serves. ctx bounds the start only: the caller
// calls Close. On an error nothing keeps running.
func StartVault(ctx context.Context, o VaultOptions) (*Vault, error) {
	common := serverOptions{"vault", o.Dir, o.Binary, o.Port, o.Detach, o.Progress}
	s, ports, err := newServer(ctx, common, 2)
	if err != nil {
		return nil, err
	}
	v := &Vault{Server: s}
	text := vaultConfig(v.Dir, ports[0], ports[1], o.Durable)
	if err := v.configure("vault.json", text, "server", "-config="); err != nil {
		return nil, err
	}
	if err := v.Start(ctx); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// vaultConfig returns the server's configuration file.
func vaultConfig(dir string, port, clusterPort int, durable bool) []byte {
	storage := map[string]any{"inmem": map[string]any{}}
	if durable {
		storage = map[string]any{"raft": map[string]any{
			"path": filepath.Join(dir, "data"), "node_id": "local", "performance_multiplier": 1,
		}}
	}
	at := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	raw, err := json.MarshalIndent(map[string]any{
		"storage": storage,
		"listener": map[string]any{
			"tcp": map[string]any{"address": at(port), "cluster_address": at(clusterPort), "tls_disable": true},
		},
		"api_addr":      "http://" + at(port),
		"cluster_addr":  "https://" + at(clusterPort),
		"disable_mlock": true,
		"log_level":     "info",
	}, "", "  ")
	if err != nil {
		panic(err) // a map of strings can't fail
	}
	return raw
}

// Start starts a stopped or killed Vault on the same address and unseals it. Without Durable it
// is empty and has other keys.
func (v *Vault) Start(ctx context.Context) error {
	if err := v.StartSealed(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := v.initialise(ctx); err != nil {
		return err
	}
	if err := v.Unseal(ctx); err != nil {
		return err
	}
	return v.enable(ctx)
}

// StartSealed starts a stopped or killed Vault and leaves it sealed.
func (v *Vault) StartSealed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := v.start(); err != nil {
		return err
	}
	return until(ctx, v.proc, "answering", func(ctx context.Context) error {
		return v.Do(ctx, http.MethodGet, "sys/seal-status", nil, nil)
	})
}

// initialise initialises Vault on the first start and reads the keys on later ones.
func (v *Vault) initialise(ctx context.Context) error {
	file := filepath.Join(v.Dir, "keys.json")
	var status struct{ Initialized bool }
	if err := v.Do(ctx, http.MethodGet, "sys/init", nil, &status); err != nil {
		return fmt.Errorf("initialising vault: %w", err)
	}
	var keys vaultKeys
	if status.Initialized {
		raw, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(raw, &keys)
		}
		if err != nil {
			return fmt.Errorf("reading vault's keys: %w", err)
		}
	} else {
		var answer struct {
			Keys      []string `json:"keys_base64"`
			RootToken string   `json:"root_token"`
		}
		in := map[string]any{"secret_shares": 1, "secret_threshold": 1}
		if err := v.Do(ctx, http.MethodPost, "sys/init", in, &answer); err != nil {
			return fmt.Errorf("initialising vault: %w", err)
		}
		keys = vaultKeys{RootToken: answer.RootToken, UnsealKey: answer.Keys[0]}
		raw, err := json.Marshal(keys)
		if err == nil {
			err = writeFile(file, raw, 0o600)
		}
		if err != nil {
			return fmt.Errorf("keeping vault's keys: %w", err)
		}
	}
	v.RootToken, v.UnsealKey = keys.RootToken, keys.UnsealKey
	return nil
}

// Seal seals Vault: it responds 503 to every request until Unseal.
func (v *Vault) Seal(ctx context.Context) error {
	return v.Do(ctx, http.MethodPost, "sys/seal", nil, nil)
}

// Unseal unseals Vault and returns when it serves requests.
func (v *Vault) Unseal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return until(ctx, v.proc, "being unsealed", func(ctx context.Context) error {
		var status struct{ Sealed bool }
		if err := v.Do(ctx, http.MethodPost, "sys/unseal", map[string]string{"key": v.UnsealKey}, &status); err != nil {
			return err
		}
		// Only the active node returns 200; after unsealing it has to be elected.
		return v.Do(ctx, http.MethodGet, "sys/health", nil, nil)
	})
}

// enable mounts what Bivouac needs and keeps what exists.
func (v *Vault) enable(ctx context.Context) error {
	var mounts, auths map[string]any
	if err := v.Do(ctx, http.MethodGet, "sys/mounts", nil, &mounts); err != nil {
		return fmt.Errorf("setting vault up: %w", err)
	}
	if _, there := mounts["secret/"]; !there {
		in := map[string]any{"type": "kv", "options": map[string]string{"version": "2"}}
		if err := v.Do(ctx, http.MethodPost, "sys/mounts/secret", in, nil); err != nil {
			return fmt.Errorf("mounting secret/: %w", err)
		}
	}
	if err := v.Do(ctx, http.MethodGet, "sys/auth", nil, &auths); err != nil {
		return fmt.Errorf("setting vault up: %w", err)
	}
	if _, there := auths["approle/"]; !there {
		if err := v.Do(ctx, http.MethodPost, "sys/auth/approle", map[string]any{"type": "approle"}, nil); err != nil {
			return fmt.Errorf("enabling approle: %w", err)
		}
	}
	// A new KV mount responds 400 until its upgrade has finished.
	return until(ctx, v.proc, "serving secret/", func(ctx context.Context) error {
		return v.Do(ctx, http.MethodGet, "secret/config", nil, nil)
	})
}

// Do sends a request as root. path is relative to /v1/, in is the body and out receives the
// response; both are JSON and may be nil. A response other than 2xx is a *StatusError.
func (v *Vault) Do(ctx context.Context, method, path string, in, out any) error {
	return v.DoAs(ctx, v.RootToken, method, path, in, out)
}

// DoAs is Do with another token.
func (v *Vault) DoAs(ctx context.Context, token, method, path string, in, out any) error {
	return v.call(ctx, "X-Vault-Token", token, method, path, in, out)
}

// Stop stops Vault gracefully. Start starts it again.
func (v *Vault) Stop() error { return v.stop(10 * time.Second) }

// Close stops Vault for good. It may be called again, and after Kill.
func (v *Vault) Close() error { return v.Stop() }
