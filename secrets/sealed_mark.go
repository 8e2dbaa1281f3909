package secrets

import (
	"context"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// Place implements Marks.
func (s *Sealed) Place() string { return "the secret store in " + s.dir }

// ReadMark implements Marks. The mark is in the file's meta bucket: 8 bytes with the number of
// writes, which is cas, followed by the mark as JSON.
func (s *Sealed) ReadMark(ctx context.Context) (mark Mark, cas uint64, found bool, err error) {
	err = s.view(ctx, bucketMeta, func(b *bbolt.Bucket) error {
		raw := b.Get(keyMark)
		if raw == nil {
			return nil
		}
		if len(raw) < 8 {
			return errDamaged
		}
		cas = binary.BigEndian.Uint64(raw)
		var err error
		mark, err = decodeMark(string(raw[8:]), sealedFile)
		found = err == nil
		return err
	})
	if err != nil {
		return Mark{}, 0, false, fmt.Errorf("reading the mark: %w", err)
	}
	return mark, cas, found, nil
}

// WriteMark implements Marks. The mark is on disk when it returns.
func (s *Sealed) WriteMark(ctx context.Context, mark Mark, cas uint64) error {
	text, err := encodeMark(mark)
	if err != nil {
		return err
	}
	err = s.update(ctx, bucketMeta, func(b *bbolt.Bucket) error {
		var current uint64
		if raw := b.Get(keyMark); len(raw) >= 8 {
			current = binary.BigEndian.Uint64(raw)
		}
		if current != cas {
			return ErrConflict
		}
		return b.Put(keyMark, append(binary.BigEndian.AppendUint64(nil, cas+1), text...))
	})
	if err != nil {
		return fmt.Errorf("writing the mark: %w", err)
	}
	return nil
}
