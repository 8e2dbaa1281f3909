package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// secretWriters is how many entries one request writes in parallel.
const secretWriters = 8

// secretWrites are the secrets to store before the request's command refers to them. The zero value
// is empty.
type secretWrites struct {
	list []secretWrite
}

type secretWrite struct {
	path string
	data map[string]string
	ref  *fsm.SecretRef
	// alone means that the path was made for this request and nothing else uses it.
	alone bool
}

// add adds an entry to write. It sets ref to the path and a provisional version, so that the
// command can be validated before anything is stored; write sets the real version.
func (w *secretWrites) add(path, member, value string, ref *fsm.SecretRef) {
	*ref = fsm.SecretRef{Path: path, Version: 1}
	w.list = append(w.list, secretWrite{path: path, data: map[string]string{member: value}, ref: ref})
}

// write stores every entry and sets the refs. After an error some entries may exist; the collector
// removes them, because no row refers to them.
func (w *secretWrites) write(ctx context.Context, store Secrets) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(secretWriters)
	for _, one := range w.list {
		group.Go(func() error {
			ref, err := store.Write(ctx, one.path, one.data)
			if err != nil {
				return secretFailure(err)
			}
			ref.Bytes = one.ref.Bytes
			*one.ref = ref
			return nil
		})
	}
	return group.Wait()
}

func (w *secretWrites) check() error {
	for i := range w.list {
		if w.list[i].size() > fsm.MaxSecretBytes {
			return fsm.Errorf(fsm.CodeInvalid, "a secret holds more than %d bytes", fsm.MaxSecretBytes)
		}
	}
	return nil
}

// count notes the sizes in the references, which count for the user.
func (w *secretWrites) count() {
	for i := range w.list {
		w.list[i].ref.Bytes = w.list[i].size()
	}
}

// size returns the bytes of the values.
func (one *secretWrite) size() (n int) {
	for _, v := range one.data {
		n += len(v)
	}
	return n
}

// secretFailure gives an uncoded error CodeSecretStore, so that it does not count as an internal
// error.
func secretFailure(err error) error {
	var coded *fsm.Error
	if errors.As(err, &coded) && coded.Code != fsm.CodeInternal {
		return fmt.Errorf("secret store: %w", err)
	}
	return errors.Join(fsm.Errorf(fsm.CodeSecretStore, "secret store"), err)
}

// readSecret returns one member of an entry.
func (s *Server) readSecret(ctx context.Context, ref fsm.SecretRef, member string) (string, error) {
	data, err := s.readEntry(ctx, ref)
	return data[member], err
}

// readEntry returns an entry with all its members.
func (s *Server) readEntry(ctx context.Context, ref fsm.SecretRef) (map[string]string, error) {
	data, err := s.secrets.Read(ctx, ref)
	switch {
	case fsm.CodeOf(err) == fsm.CodeNotFound:
		// A row refers to it, so this is not the client's error.
		return nil, errSecretGone(ref, err)
	case err != nil:
		return nil, secretFailure(err)
	}
	return data, nil
}

// errSecretGone is the failure of an entry that a row refers to and the store does not have.
func errSecretGone(ref fsm.SecretRef, err error) error {
	return &response.HTTPError{
		Status: http.StatusInternalServerError,
		Text: "The secret store has lost a secret that this needs: save it again, " +
			"or have the operator bring the store's data back",
		Cause: fmt.Errorf("secret %s version %d is gone: %w", ref.Path, ref.Version, err),
	}
}

// sandboxEntry returns the entry of a sandbox's key. When another key, or a deletion, took the entry
// away after the row was read, the row of now decides.
func (s *Server) sandboxEntry(ctx context.Context, row *fsm.Sandbox) (map[string]string, error) {
	for {
		data, err := s.secrets.Read(ctx, row.KeyRef)
		if fsm.CodeOf(err) != fsm.CodeNotFound {
			if err != nil {
				return nil, secretFailure(err)
			}
			return data, nil
		}
		v, viewErr := s.cluster.View(ctx, cluster.Linearizable)
		if viewErr != nil {
			return nil, viewErr
		}
		now := v.SandboxAny(row.ID)
		switch {
		case now == nil || now.Desired == fsm.DesiredDeleted:
			return nil, response.NotFound()
		case now.KeyRef == row.KeyRef:
			return nil, errSecretGone(row.KeyRef, err)
		}
		row = now
	}
}

// startSecrets are the secrets of a start task, stored as the member "json" of its entry.
type startSecrets struct {
	Secrets   map[string]string  `json:"secrets"`
	MCPConfig *mcpConfig         `json:"mcp_config"`
	Plugins   []fsm.PluginSource `json:"plugins"`
	// Metadata is the request's observability_metadata.
	Metadata fsm.JSONObject `json:"observability_metadata,omitempty"`
}

// empty reports whether there is nothing to store.
func (d *startSecrets) empty() bool {
	return len(d.Secrets) == 0 && d.MCPConfig == nil && len(d.Plugins) == 0 && len(d.Metadata) == 0
}

// stage adds the document to the secrets to write.
func (d *startSecrets) stage(w *secretWrites, user, task string, ref *fsm.SecretRef) error {
	if d.empty() {
		return nil
	}
	d.Secrets = wire.OrEmptyMap(d.Secrets)
	text, err := response.Encode(d)
	if err != nil {
		return fmt.Errorf("encoding the secrets of a start task: %w", err)
	}
	w.add(fsm.StartTaskPath(user, task), "json", string(text), ref)
	w.alone()
	return nil
}

// alone marks the last entry: its path was made for this request.
func (w *secretWrites) alone() { w.list[len(w.list)-1].alone = true }

func (w *secretWrites) discard(ctx context.Context, store Secrets) error {
	var errs []error
	for _, one := range w.list {
		errs = append(errs, store.Delete(ctx, one.path))
	}
	return errors.Join(errs...)
}

// also adds a member to the last entry.
func (w *secretWrites) also(member, value string) {
	w.list[len(w.list)-1].data[member] = value
}
