package copies

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"filippo.io/age"
	"gocloud.dev/blob"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/archive"
)

// objectSize is about how large an object of data is. Small files share one, large ones have
// several.
const objectSize = 4 << 20

// Save makes a copy of a workspace. export writes the workspace as a stream of package archive; it
// reads what the copy base, nil for none, knows of it. The copy is not in the state yet: Copy.At is
// the caller's to set. uploaded is how many bytes of content were sent, gone how many objects of base
// the store has lost: what was in them is sent again.
func (s *Store) Save(
	ctx context.Context,
	cluster, sandbox string,
	base *fsm.Copy,
	export func(ctx context.Context, known io.Reader, out io.Writer) error,
) (made fsm.Copy, uploaded int64, gone int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if base != nil && s.dir != "" { // a bucket that is gone takes nothing; a mount point does
		if s.Ready(ctx, cluster) != nil {
			s.moveHome(ctx, cluster, sandbox, *base)
		}
		if err := s.Ready(ctx, cluster); err != nil {
			return made, 0, 0, err
		}
	}
	w := &saver{s: s, ctx: ctx, cluster: cluster, sandbox: sandbox}
	if s.keys != nil {
		if w.to, err = s.keys.Recipient(ctx); err != nil {
			return made, 0, 0, err
		}
	}
	base, again, gone, err := s.reused(ctx, cluster, sandbox, base, w.to != nil)
	if err != nil {
		return made, 0, gone, err
	}
	w.id = nextID(base)
	knownIn, knownOut := io.Pipe()
	streamIn, streamOut := io.Pipe()
	done := make(chan error, 2)
	go func() { done <- s.tellKnown(ctx, cluster, sandbox, base, again, knownOut) }()
	go func() {
		err := export(ctx, knownIn, streamOut)
		_ = knownIn.CloseWithError(io.ErrClosedPipe) // it may not have read all
		_ = streamOut.CloseWithError(err)
		done <- err
	}()
	made, err = w.save(archive.NewReader(streamIn), base)
	cancel()
	_ = streamIn.CloseWithError(errors.Join(err, context.Canceled))
	for range 2 {
		if first := <-done; err != nil && first != nil && !errors.Is(first, context.Canceled) &&
			!errors.Is(first, io.ErrClosedPipe) {
			err = first // what the other end says is the cause
		}
	}
	// It may have gone meanwhile: what it lacks then is not damaged, and what follows is elsewhere.
	if s.dir != "" && (err == nil || base != nil && errors.Is(err, archive.ErrDamaged)) {
		if away := s.Ready(context.WithoutCancel(ctx), cluster); away != nil {
			err = away
		}
	}
	if err == nil {
		err = s.durable(cluster, sandbox, made.ID)
	}
	if err != nil {
		w.discard(context.WithoutCancel(ctx))
	}
	return made, w.uploaded, gone, err
}

// discardTime bounds how long the removal of a copy that failed may take.
const discardTime = 30 * time.Second

// discard removes what a copy that failed has stored. A workspace that is never copied to its end,
// as one that is too large, would fill the store by its tries. What it can't remove, a later copy's
// collection does.
func (w *saver) discard(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, discardTime)
	defer cancel()
	_ = w.s.each(ctx, dirOf(w.cluster, w.sandbox, w.id), func(o *blob.ListObject) error {
		return w.s.remove(ctx, o.Key)
	})
	if w.s.dir == "" {
		return
	}
	// A directory of the cluster that has nothing would pass for the store.
	for _, dir := range []string{dirOf(w.cluster, w.sandbox, w.id), path.Join(w.cluster, w.sandbox), w.cluster} {
		_ = os.Remove(filepath.Join(w.s.dir, dir))
	}
}

// reused returns what the next copy builds on, and the objects of that whose content it writes again.
// Of a copy without its manifest only the number is left.
func (s *Store) reused(
	ctx context.Context,
	cluster, sandbox string,
	base *fsm.Copy,
	encrypted bool,
) (use *fsm.Copy, again map[string]bool, gone int, err error) {
	if base == nil {
		return nil, nil, 0, nil
	}
	var u usage
	if err = s.checked(ctx, cluster, sandbox, *base); err == nil {
		u, err = s.usage(ctx, cluster, sandbox, *base)
	}
	if errors.Is(err, archive.ErrDamaged) {
		return &fsm.Copy{ID: base.ID}, nil, 1, nil
	}
	return base, u.again(encrypted), u.gone(), err
}

// tellKnown writes what the copy knows of files to out, without those in objects that are made again.
func (s *Store) tellKnown(
	ctx context.Context,
	cluster, sandbox string,
	base *fsm.Copy,
	again map[string]bool,
	out *io.PipeWriter,
) (err error) {
	defer func() { _ = out.CloseWithError(err) }()
	if base == nil || base.Sum == "" {
		return nil
	}
	m, err := s.openManifest(ctx, cluster, sandbox, base.ID)
	if err != nil {
		return err
	}
	defer m.close()
	enc := json.NewEncoder(out)
	for {
		i, err := m.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && i.Kind == archive.KindFile &&
			!slices.ContainsFunc(i.Parts, func(p part) bool { must, in := again[p.Object]; return in && (must || packed(i)) }) {
			err = enc.Encode(archive.Known{Path: i.Path, Size: i.Size, ModTime: i.ModTime, Changed: i.Changed, Inode: i.Inode})
		}
		if err != nil {
			return err
		}
	}
}

// saver makes one copy.
type saver struct {
	s                *Store
	ctx              context.Context
	cluster, sandbox string
	id               string
	to               age.Recipient
	w                *manifestWriter
	// pack collects the content of the object that is being made, number objects.
	pack     []byte
	objects  int
	uploaded int64
}

func (w *saver) save(r *archive.Reader, base *fsm.Copy) (made fsm.Copy, err error) {
	var old *manifest
	if base != nil && base.Sum != "" {
		if old, err = w.s.openManifest(w.ctx, w.cluster, w.sandbox, base.ID); err != nil {
			return made, err
		}
		defer old.close()
	}
	if w.w, err = w.s.newManifest(w.ctx, head{manifestFormat, w.cluster, w.sandbox, w.id}, w.to); err != nil {
		return made, err
	}
	made.ID = w.id
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var i item
		if err == nil {
			i, err = w.item(r, e, old)
		}
		if err == nil {
			err = w.w.add(i)
		}
		if err != nil {
			w.w.abandon()
			return made, err
		}
		if e.Kind == archive.KindFile {
			made.Files++
			for _, p := range i.Parts {
				made.Bytes += p.Length
			}
		}
	}
	if err := w.flush(); err != nil {
		w.w.abandon()
		return made, err
	}
	made.Sum, err = w.w.close()
	return made, err
}

// item stores the content of an entry.
func (w *saver) item(r io.Reader, e *archive.Entry, old *manifest) (item, error) {
	i := item{Entry: e}
	if e.Same {
		if old == nil {
			return i, fmt.Errorf("%w: %q was not told as known", archive.ErrDamaged, e.Path)
		}
		was, err := old.find(e.Path)
		if err != nil {
			return i, err
		}
		// Holes may be told otherwise without a change: those of then go with the content of then.
		e.Pieces, i.Parts = was.Pieces, was.Parts
		return i, nil
	}
	for left := e.Content(); left > 0; {
		room := int64(objectSize - len(w.pack))
		if left > room && len(w.pack) > 0 && left >= objectSize {
			// A large file begins an object of its own, so that its pieces stay the same.
			if err := w.flush(); err != nil {
				return i, err
			}
			room = objectSize
		}
		n, begin := min(left, room), len(w.pack)
		w.pack = append(w.pack, make([]byte, n)...)
		if _, err := io.ReadFull(r, w.pack[begin:]); err != nil {
			return i, fmt.Errorf("%w: %w", archive.ErrDamaged, err)
		}
		sum := sha256.Sum256(w.pack[begin:])
		i.Parts = append(i.Parts, part{Object: w.object(), Offset: int64(begin), Length: n, Sum: sum[:]})
		left -= n
		if len(w.pack) == objectSize {
			if err := w.flush(); err != nil {
				return i, err
			}
		}
	}
	return i, nil
}

func (w *saver) object() string {
	name := fmt.Sprintf("%s/data-%06d", w.id, w.objects)
	if w.to != nil {
		name += sealedSuffix
	}
	return name
}

// flush stores the object that is being made.
func (w *saver) flush() error {
	if len(w.pack) == 0 {
		return nil
	}
	data, err := sealed(w.to, w.pack)
	if err == nil {
		err = w.s.put(w.ctx, dirOf(w.cluster, w.sandbox, "")+w.object(), data)
	}
	if err != nil {
		return err
	}
	w.uploaded += int64(len(w.pack))
	w.objects++
	w.pack = w.pack[:0]
	return nil
}
