package httpapi

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
)

// maxSecretEntry bounds one entry of the secret store, in bytes.
const maxSecretEntry = 512 << 10

// secretWriters is how many entries one request writes at once.
const secretWriters = 8

// secretWrites are the secrets one request has to store before its command can
// refer to them. The zero value has none.
type secretWrites struct {
	list []secretWrite
}

type secretWrite struct {
	path string
	data map[string]string
	ref  *fsm.SecretRef
	// alone: the path is made for this request, nothing else is or will be
	// stored there.
	alone bool
}

// add notes an entry to write. ref gets its path at once, with a version that
// stands in until write has the real one, so that the command's body can be
// validated before anything is stored.
func (w *secretWrites) add(path, member, value string, ref *fsm.SecretRef) {
	*ref = fsm.SecretRef{Path: path, Version: 1}
	w.list = append(w.list, secretWrite{path: path, data: map[string]string{member: value}, ref: ref})
}

// write stores every entry and fills in the refs. When one fails
// the others may have been stored: no row refers to them, so they are collected
// as garbage.
func (w *secretWrites) write(ctx context.Context, store Secrets) error {
	if err := w.check(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(secretWriters)
	for _, one := range w.list {
		group.Go(func() error {
			ref, err := store.Write(ctx, one.path, one.data)
			if err != nil {
				return secretFailure(err)
			}
			*one.ref = ref
			return nil
		})
	}
	return group.Wait()
}

func (w *secretWrites) check() error {
	for _, one := range w.list {
		size := 0
		for _, v := range one.data {
			size += len(v)
		}
		if size > maxSecretEntry {
			return fsm.Errorf(fsm.CodeInvalid, "a secret holds more than %d bytes", maxSecretEntry)
		}
	}
	return nil
}

// secretFailure makes sure that a failing secret store is told from a failure
// of ours.
func secretFailure(err error) error {
	var coded *fsm.Error
	if errors.As(err, &coded) && coded.Code != fsm.CodeInternal {
		return fmt.Errorf("secret store: %w", err)
	}
	return errors.Join(fsm.Errorf(fsm.CodeSecretStore, "secret store"), err)
}

// readSecret gives one member of an entry.
func (s *Server) readSecret(ctx context.Context, ref fsm.SecretRef, member string) (string, error) {
	data, err := s.secrets.Read(ctx, ref)
	if err != nil {
		if fsm.CodeOf(err) == fsm.CodeNotFound {
			// The row refers to it, so the client did nothing wrong.
			return "", fsm.Errorf(fsm.CodeInternal, "secret %s version %d is gone: %v", ref.Path, ref.Version, err)
		}
		return "", secretFailure(err)
	}
	return data[member], nil
}

// startSecrets is the document that goes with a start task ("json" of its
// entry).
type startSecrets struct {
	Secrets   map[string]string  `json:"secrets"`
	MCPConfig *mcpConfig         `json:"mcp_config"`
	Plugins   []fsm.PluginSource `json:"plugins"`
}

// empty reports whether there is nothing to store.
func (d *startSecrets) empty() bool {
	return len(d.Secrets) == 0 && d.MCPConfig == nil && len(d.Plugins) == 0
}

// stage notes the document to write.
func (d *startSecrets) stage(w *secretWrites, user, task string, ref *fsm.SecretRef) error {
	if d.empty() {
		return nil
	}
	d.Secrets = orEmptyMap(d.Secrets)
	text, err := encodeJSON(d)
	if err != nil {
		return fmt.Errorf("encoding the secrets of a start task: %w", err)
	}
	w.add("users/"+user+"/start_tasks/"+task, "json", string(text), ref)
	w.alone()
	return nil
}

// The logical paths of a user's secrets.
func settingPath(user, name string) string { return "users/" + user + "/settings/" + name }
func providerPath(user string, t fsm.ProviderType) string {
	return "users/" + user + "/providers/" + string(t)
}
func customPath(user, name string) string {
	return "users/" + user + "/custom/" + base64.RawURLEncoding.EncodeToString([]byte(name))
}
func sandboxPath(sandbox string) string { return "sandboxes/" + sandbox + "/session" }

// alone says of the entry noted last that its path is made for this request.
func (w *secretWrites) alone() { w.list[len(w.list)-1].alone = true }

// discard deletes the entries.
func (w *secretWrites) discard(ctx context.Context, store Secrets) error {
	var errs []error
	for _, one := range w.list {
		errs = append(errs, store.Delete(ctx, one.path))
	}
	return errors.Join(errs...)
}

// also adds a member to the entry noted last.
func (w *secretWrites) also(member, value string) {
	w.list[len(w.list)-1].data[member] = value
}
