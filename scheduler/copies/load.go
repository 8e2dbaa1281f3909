package copies

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	lru "github.com/hashicorp/golang-lru/v2"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/archive"
)

// Load writes the copy to out as a stream of package archive. Every byte is checked on the way. A
// copy that is not what was stored is archive.ErrDamaged, and out is then no whole stream.
func (s *Store) Load(ctx context.Context, cluster, sandbox string, c fsm.Copy, out io.Writer) error {
	if err := s.checked(ctx, cluster, sandbox, c); err != nil {
		return err
	}
	m, err := s.openManifest(ctx, cluster, sandbox, c.ID)
	if err != nil {
		return err
	}
	defer m.close()
	objects, err := lru.New[string, []byte](4)
	if err != nil {
		return err
	}
	w := archive.NewWriter(out)
	for {
		i, err := m.next()
		if errors.Is(err, io.EOF) {
			return w.Close()
		}
		if err != nil {
			return err
		}
		if err := w.Entry(i.Entry); err != nil {
			return err
		}
		for _, p := range i.Parts {
			data, err := s.part(ctx, dirOf(cluster, sandbox, "")+p.Object, p, objects)
			if err == nil {
				_, err = w.Write(data)
			}
			if err != nil {
				return err
			}
		}
	}
}

// part returns the content of a part. The objects read last are kept: small files share them.
func (s *Store) part(ctx context.Context, key string, p part, objects *lru.Cache[string, []byte]) ([]byte, error) {
	object, ok := objects.Get(key)
	if !ok {
		var err error
		if object, err = s.bucket.ReadAll(ctx, key); err != nil {
			return nil, unavailable("reading "+key, err)
		}
		objects.Add(key, object)
	}
	if p.Offset < 0 || p.Length < 0 || p.Offset > int64(len(object))-p.Length {
		return nil, fmt.Errorf("%w: %s ends early", archive.ErrDamaged, key)
	}
	data := object[p.Offset : p.Offset+p.Length]
	if sum := sha256.Sum256(data); !bytes.Equal(sum[:], p.Sum) {
		return nil, fmt.Errorf("%w: %s has another checksum than its manifest says", archive.ErrDamaged, key)
	}
	return data, nil
}
