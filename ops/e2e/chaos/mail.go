package chaos

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// HoldMessages makes the node send Raft's messages as its Mail says; TLS hides them from the
// router. It wraps the transport that Raft gets, so that the program's own handling applies to
// late messages too.
func (o *Overlay) HoldMessages() error {
	found := 0
	files, err := filepath.Glob(filepath.Join(o.root, "cluster", "*.go"))
	if err != nil {
		return err
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := filepath.Rel(o.root, path)
		if err != nil {
			return err
		}
		count, err := o.wrapTransport(file)
		if err != nil {
			return err
		}
		found += count
	}
	if found != 1 {
		return fmt.Errorf("raft.NewRaft is called in %d places of package cluster, not in one", found)
	}
	o.changed[filepath.Join("cluster", "drill_mail.go")] = []byte(mailSource)
	return nil
}

// wrapTransport wraps the last argument of each call of raft.NewRaft.
func (o *Overlay) wrapTransport(file string) (found int, err error) {
	text, err := o.source(file)
	if err != nil {
		return 0, err
	}
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, text, 0)
	if err != nil {
		return 0, err
	}
	ast.Inspect(tree, func(node ast.Node) bool {
		call, is := node.(*ast.CallExpr)
		if !is {
			return true
		}
		callee, is := call.Fun.(*ast.SelectorExpr)
		if !is || callee.Sel.Name != "NewRaft" || len(call.Args) == 0 {
			return true
		}
		if pkg, is := callee.X.(*ast.Ident); !is || pkg.Name != "raft" {
			return true
		}
		last := call.Args[len(call.Args)-1]
		from, to := fset.Position(last.Pos()).Offset, fset.Position(last.End()).Offset
		if found++; found > 1 {
			err = errors.New("raft.NewRaft is called twice in " + file)
			return false
		}
		o.changed[file] = []byte(string(text[:from]) + "drillMail(" + string(text[from:to]) + ")" + string(text[to:]))
		return true
	})
	return found, err
}

// mailSource is added to package cluster: the transport that sends late. A file controls it, as
// with the clock, and holds the seed.
const mailSource = `package cluster

import (
	"bytes"
	"errors"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/hashicorp/raft"
)

type drillMailer struct {
	raft.Transport
	word, seed *uint64
	node       string

	mu     sync.Mutex
	chance *rand.Rand
}

func drillMail(inner raft.Transport) raft.Transport {
	dir, node := os.Getenv("BIVOUAC_DRILL_DIR"), os.Getenv("BIVOUAC_DRILL_NODE")
	if dir == "" || node == "" {
		return inner
	}
	f, err := os.OpenFile(filepath.Join(dir, "mail-"+node), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return inner
	}
	defer f.Close()
	if f.Truncate(16) != nil {
		return inner
	}
	page, err := syscall.Mmap(int(f.Fd()), 0, 16, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return inner
	}
	word, seed := (*uint64)(unsafe.Pointer(&page[0])), (*uint64)(unsafe.Pointer(&page[8]))
	return &drillMailer{Transport: inner, word: word, seed: seed, node: node}
}

var errDrillLost = errors.New("the drill holds this message back")

// fate says what becomes of one message: it is sent again after a time, waits before it is sent,
// or is sent later while the sender gets an error. A snapshot can only be sent again.
func (m *drillMailer) fate(snapshot bool) (again, before, instead time.Duration) {
	word := atomic.LoadUint64(m.word)
	most := time.Duration(word>>32) * time.Millisecond
	if word == 0 || most == 0 {
		return 0, 0, 0
	}
	twice, held, lost := int(word&0xff), int(word>>8&0xff), int(word>>16&0xff)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.chance == nil {
		name := fnv.New64a()
		_, _ = name.Write([]byte(m.node))
		m.chance = rand.New(rand.NewPCG(atomic.LoadUint64(m.seed), name.Sum64()))
	}
	dice, wait := m.chance.IntN(100), time.Duration(m.chance.Int64N(int64(most)))+time.Millisecond
	if snapshot {
		if dice >= int(word>>24&0xff) {
			return 0, 0, 0
		}
		return wait, 0, 0
	}
	switch {
	case dice < twice:
		return wait, 0, 0
	case dice < twice+held:
		return 0, wait / 10, 0
	case dice < twice+held+lost:
		return 0, 0, wait
	}
	return 0, 0, 0
}

// post carries out what fate says of one message.
func (m *drillMailer) post(send, later func() error) error {
	again, before, instead := m.fate(false)
	switch {
	case again > 0:
		time.AfterFunc(again, func() { _ = later() })
	case instead > 0:
		time.AfterFunc(instead, func() { _ = later() })
		return errDrillLost
	case before > 0:
		time.Sleep(before)
	}
	return send()
}

func (m *drillMailer) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	kept := *args
	return m.post(
		func() error { return m.Transport.AppendEntries(id, target, args, resp) },
		func() error { return m.Transport.AppendEntries(id, target, &kept, new(raft.AppendEntriesResponse)) },
	)
}

func (m *drillMailer) RequestVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	kept := *args
	return m.post(
		func() error { return m.Transport.RequestVote(id, target, args, resp) },
		func() error { return m.Transport.RequestVote(id, target, &kept, new(raft.RequestVoteResponse)) },
	)
}

func (m *drillMailer) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	inner, ok := m.Transport.(raft.WithPreVote)
	if !ok {
		return errors.New("the transport knows no pre-votes")
	}
	kept := *args
	return m.post(
		func() error { return inner.RequestPreVote(id, target, args, resp) },
		func() error { return inner.RequestPreVote(id, target, &kept, new(raft.RequestPreVoteResponse)) },
	)
}

func (m *drillMailer) TimeoutNow(
	id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	kept := *args
	return m.post(
		func() error { return m.Transport.TimeoutNow(id, target, args, resp) },
		func() error { return m.Transport.TimeoutNow(id, target, &kept, new(raft.TimeoutNowResponse)) },
	)
}

// InstallSnapshot is sent again more often than anything else: there are few.
func (m *drillMailer) InstallSnapshot(
	id raft.ServerID, target raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	again, before, instead := m.fate(true)
	for i := 0; i < 2 && again+instead == 0; i++ {
		again, before, instead = m.fate(false)
	}
	if again+instead == 0 {
		time.Sleep(before)
		return m.Transport.InstallSnapshot(id, target, args, resp, data)
	}
	raw, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	kept := *args
	time.AfterFunc(again+instead, func() {
		_ = m.Transport.InstallSnapshot(id, target, &kept, new(raft.InstallSnapshotResponse), bytes.NewReader(raw))
	})
	if instead > 0 {
		return errDrillLost
	}
	return m.Transport.InstallSnapshot(id, target, args, resp, bytes.NewReader(raw))
}

// Close implements raft.WithClose.
func (m *drillMailer) Close() error {
	if inner, ok := m.Transport.(raft.WithClose); ok {
		return inner.Close()
	}
	return nil
}
`
