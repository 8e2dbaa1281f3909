package secrets

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// versionKey returns a version's key: its path, a zero byte and its number, big-endian. The
// versions of an entry are adjacent.
func versionKey(path string, version int) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(path), 0), uint64(version))
}

// parseVersionKey is the inverse of versionKey.
func parseVersionKey(key []byte) (path string, version int, ok bool) {
	i := bytes.IndexByte(key, 0)
	if i < 0 || len(key) != i+9 {
		return "", 0, false
	}
	return string(key[:i]), int(binary.BigEndian.Uint64(key[i+1:])), true
}

// record is the value at a version's key. Format 2 of the file:
//
//	8 bytes  time of writing, Unix microseconds
//	8 bytes  time of deletion, Unix microseconds, 0 for none
//	2 bytes  length of the birth's text
//	...      the birth's text
//	...      the sealed data
//
// Format 1 had the time of writing and the sealed data. The encryption authenticates the key and
// the time of writing, so a record that was moved or whose time was changed can't be opened.
type record struct {
	created, deleted int64
	birth            string
	sealed           []byte
}

// recordHead is the length of a record before the birth's text.
const recordHead = 18

func (r record) encode() []byte {
	raw := binary.BigEndian.AppendUint64(nil, uint64(r.created))
	raw = binary.BigEndian.AppendUint64(raw, uint64(r.deleted))
	raw = binary.BigEndian.AppendUint16(raw, uint16(len(r.birth)))
	return slices.Concat(raw, []byte(r.birth), r.sealed)
}

// decodeRecord reads a record, which shares memory with raw.
func decodeRecord(raw []byte) (record, error) {
	if len(raw) < recordHead {
		return record{}, errDamaged
	}
	end := recordHead + int(binary.BigEndian.Uint16(raw[16:]))
	if len(raw) < end {
		return record{}, errDamaged
	}
	return record{
		created: int64(binary.BigEndian.Uint64(raw)), deleted: int64(binary.BigEndian.Uint64(raw[8:])),
		birth: string(raw[recordHead:end]), sealed: raw[end:],
	}, nil
}

// createdAt returns the time of writing.
func (r record) createdAt() time.Time { return time.UnixMicro(r.created).UTC() }

// deletedAt returns the time of deletion, zero for none.
func (r record) deletedAt() time.Time {
	if r.deleted == 0 {
		return time.Time{}
	}
	return time.UnixMicro(r.deleted).UTC()
}

// bound returns the additional data that the encryption authenticates.
func (r record) bound(key []byte) []byte {
	return binary.BigEndian.AppendUint64(bytes.Clone(key), uint64(r.created))
}

// newRecord seals data in a new record.
func (s *Sealed) newRecord(key []byte, data map[string]string, birth Birth) (record, error) {
	plain, err := json.Marshal(data)
	if err != nil {
		return record{}, err
	}
	r := record{created: s.now().UnixMicro(), birth: birth.String()}
	r.sealed = s.sealer.seal(plain, r.bound(key))
	return r, nil
}

// unseal returns the data of a record.
func (s *Sealed) unseal(key []byte, r record) (data map[string]string, err error) {
	plain, err := s.sealer.open(r.sealed, r.bound(key))
	if err != nil {
		return nil, err
	}
	return data, json.Unmarshal(plain, &data)
}

// upgradeRecords rewrites the records of format 1, which have no birth.
func upgradeRecords(b *bbolt.Bucket) error {
	type pair struct{ key, raw []byte }
	var old []pair
	err := b.ForEach(func(key, raw []byte) error {
		if len(raw) >= 8 { // a shorter one is damaged and stays so
			old = append(old, pair{bytes.Clone(key), bytes.Clone(raw)})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range old {
		r := record{created: int64(binary.BigEndian.Uint64(p.raw)), sealed: p.raw[8:]}
		if err := b.Put(p.key, r.encode()); err != nil {
			return err
		}
	}
	return nil
}
