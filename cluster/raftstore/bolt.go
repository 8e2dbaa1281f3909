package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt checks nothing but its two roots, and panics, in goroutines of its own
// too, when it follows a damaged page. So the file is walked before bbolt sees
// it: every page that can be reached from either root must be one, be used once,
// and be in order. The layout is bbolt's format 2 on a little-endian machine.

const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltPageHeader = 16
	boltElement    = 16
	boltBucketHead = 16
	boltMetaLen    = 64 // the checksum in its last 8 bytes
	boltBranch     = 0x01
	boltLeaf       = 0x02
	boltMeta       = 0x04
	boltSubBucket  = 0x01 // flag of a leaf element
	boltMaxDepth   = 64
)

// boltWalk is one look at one tree.
type boltWalk struct {
	file     io.ReaderAt
	pageSize int64
	// limit is the first page that is not the tree's, size the file's.
	limit uint64
	size  int64
	seen  map[uint64]bool
	// keys gets the keys of each bucket; the root bucket is "".
	keys map[string][]string
}

// checkBolt verifies the structure of the bbolt file at path and gives the keys
// in each of its top buckets, of up to 64 bytes.
func checkBolt(path string) (map[string][]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	metas, err := boltMetas(f)
	if err != nil {
		return nil, err
	}
	newest := metas[0]
	if metas[1].txid > newest.txid {
		newest = metas[1]
	}
	w := &boltWalk{
		file: f, pageSize: newest.pageSize, limit: newest.limit, size: info.Size(),
		seen: map[uint64]bool{}, keys: map[string][]string{},
	}
	if err := w.tree("", newest.root, span{}, 0); err != nil {
		return nil, err
	}
	return w.keys, nil
}

type boltMetaPage struct {
	pageSize          int64
	root, limit, txid uint64
}

// boltMetas reads both roots. Each is smaller than a sector, so neither can be
// half written.
func boltMetas(f io.ReaderAt) (metas [2]boltMetaPage, err error) {
	at := int64(0)
	for i := range metas {
		raw := make([]byte, boltPageHeader+boltMetaLen)
		if _, err := f.ReadAt(raw, at); err != nil {
			return metas, fmt.Errorf("reading root %d: %w", i, err)
		}
		m := raw[boltPageHeader:]
		body := m[:boltMetaLen-8]
		sum := fnv.New64a()
		_, _ = sum.Write(body) // a hash never fails
		switch {
		case binary.LittleEndian.Uint16(raw[8:]) != boltMeta,
			binary.LittleEndian.Uint32(m) != boltMagic, binary.LittleEndian.Uint32(m[4:]) != boltVersion:
			return metas, fmt.Errorf("root %d is none", i)
		case binary.LittleEndian.Uint64(m[boltMetaLen-8:]) != sum.Sum64():
			return metas, fmt.Errorf("the checksum of root %d is wrong", i)
		}
		metas[i] = boltMetaPage{
			pageSize: int64(binary.LittleEndian.Uint32(m[8:])), root: binary.LittleEndian.Uint64(m[16:]),
			limit: binary.LittleEndian.Uint64(m[40:]), txid: binary.LittleEndian.Uint64(m[48:]),
		}
		at = metas[0].pageSize
	}
	if metas[0].pageSize != metas[1].pageSize || metas[0].pageSize < 512 || metas[0].pageSize > 1<<20 {
		return metas, errors.New("its roots disagree on the size of a page")
	}
	return metas, nil
}

// span is where the keys below an element must lie: from low on and before
// high; nil is no bound.
type span struct{ low, high []byte }

func (s span) holds(key []byte) bool {
	return bytes.Compare(s.low, key) <= 0 && (s.high == nil || bytes.Compare(key, s.high) < 0)
}

// tree walks the pages from id on, whose keys must lie within.
func (w *boltWalk) tree(bucket string, id uint64, within span, depth int) error {
	if depth > boltMaxDepth {
		return errors.New("its tree is too deep")
	}
	page, err := w.page(id)
	if err != nil {
		return err
	}
	return w.elements(bucket, fmt.Sprintf("page %d", id), page, within, depth)
}

// page reads a page with its overflow and checks its header.
func (w *boltWalk) page(id uint64) ([]byte, error) {
	if id < 2 || id >= w.limit || w.seen[id] {
		return nil, fmt.Errorf("page %d is out of place", id)
	}
	var head [boltPageHeader]byte
	if _, err := w.file.ReadAt(head[:], int64(id)*w.pageSize); err != nil {
		return nil, fmt.Errorf("reading page %d: %w", id, err)
	}
	overflow := uint64(binary.LittleEndian.Uint32(head[12:]))
	if binary.LittleEndian.Uint64(head[:]) != id || id+overflow >= w.limit {
		return nil, fmt.Errorf("page %d says it is another", id)
	}
	for p := id; p <= id+overflow; p++ {
		if w.seen[p] {
			return nil, fmt.Errorf("page %d is used twice", p)
		}
		w.seen[p] = true
	}
	page := make([]byte, int64(overflow+1)*w.pageSize)
	if int64(id)*w.pageSize+int64(len(page)) > w.size {
		return nil, fmt.Errorf("page %d is behind the end of the file", id)
	}
	if _, err := w.file.ReadAt(page, int64(id)*w.pageSize); err != nil {
		return nil, fmt.Errorf("reading page %d: %w", id, err)
	}
	return page, nil
}

// boltItem is one element of a page.
type boltItem struct {
	raw, key, value []byte
}

// items takes a page apart; its keys must grow and lie within.
func items(name string, page []byte, branch bool, within span) ([]boltItem, error) {
	count := int(binary.LittleEndian.Uint16(page[10:]))
	if boltPageHeader+count*boltElement > len(page) {
		return nil, fmt.Errorf("%s has too many elements", name)
	}
	list := make([]boltItem, count)
	for i := range list {
		at := boltPageHeader + i*boltElement
		e := page[at : at+boltElement]
		field := func(n int) uint64 { return uint64(binary.LittleEndian.Uint32(e[4*n:])) }
		position, keyLen, valueLen := field(1), field(2), field(3)
		if branch {
			position, keyLen, valueLen = field(0), field(1), 0
		}
		begin := uint64(at) + position
		if position < boltElement || keyLen == 0 || begin+keyLen+valueLen > uint64(len(page)) {
			return nil, fmt.Errorf("%s: element %d is outside", name, i)
		}
		list[i] = boltItem{raw: e, key: page[begin : begin+keyLen], value: page[begin+keyLen : begin+keyLen+valueLen]}
		if !within.holds(list[i].key) || i > 0 && bytes.Compare(list[i-1].key, list[i].key) >= 0 {
			return nil, fmt.Errorf("%s: element %d is out of order", name, i)
		}
	}
	return list, nil
}

// elements checks a page's elements and what they lead to.
func (w *boltWalk) elements(bucket, name string, page []byte, within span, depth int) error {
	flags := binary.LittleEndian.Uint16(page[8:])
	if flags != boltBranch && flags != boltLeaf {
		return fmt.Errorf("%s is of no kind", name)
	}
	list, err := items(name, page, flags == boltBranch, within)
	if err != nil {
		return err
	}
	if flags == boltLeaf {
		for _, e := range list {
			if err := w.leaf(bucket, name, e, depth); err != nil {
				return err
			}
		}
		return nil
	}
	if len(list) == 0 {
		return fmt.Errorf("%s leads nowhere", name)
	}
	for i, e := range list {
		below := span{low: e.key, high: within.high}
		if i+1 < len(list) {
			below.high = list[i+1].key
		}
		if err := w.tree(bucket, binary.LittleEndian.Uint64(e.raw[8:]), below, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks an element that holds a value or a bucket.
func (w *boltWalk) leaf(bucket, name string, e boltItem, depth int) error {
	if len(e.key) <= 64 {
		w.keys[bucket] = append(w.keys[bucket], string(e.key))
	}
	switch kind := binary.LittleEndian.Uint32(e.raw); {
	case kind == 0:
		return nil
	case kind != boltSubBucket || bucket != "" || len(e.value) < boltBucketHead:
		return fmt.Errorf("%s: element %q is of no kind", name, e.key)
	}
	if root := binary.LittleEndian.Uint64(e.value); root != 0 {
		return w.tree(string(e.key), root, span{}, depth+1)
	}
	inline := e.value[boltBucketHead:]
	if len(inline) < boltPageHeader {
		return fmt.Errorf("%s: bucket %q is too short", name, e.key)
	}
	return w.elements(string(e.key), fmt.Sprintf("bucket %q", e.key), inline, span{}, depth+1)
}
