package copies_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local/ownprocess"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/archive"
	"bivouac.dev/bivouac/scheduler/copies"
)

// envGateway names the program of versitygw, an S3 server. `make s3` builds it; without it the tests
// with S3 are skipped.
const envGateway = "BIVOUAC_S3_GATEWAY"

// gateway is a bench whose store is a bucket of versitygw. Requests go through a proxy that has faults.
type gateway struct {
	*bench
	// fault answers a request, or reports that it did not.
	fault atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	url   string
}

// The credentials of S3 are those of the profiles in testdata/s3_credentials.
const accessKey, secretKey = "access", "secret-of-the-bucket"

// withGateway runs the test in a process of its own, where the credentials are in the environment. It
// is skipped without a gateway.
func withGateway(t *testing.T) (here bool) {
	t.Helper()
	if os.Getenv(envGateway) == "" {
		t.Skip("make s3 runs it: " + envGateway + " names no versitygw")
	}
	return ownprocess.Enter(t, "AWS_SHARED_CREDENTIALS_FILE=testdata/s3_credentials", "AWS_EC2_METADATA_DISABLED=true")
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	program := os.Getenv(envGateway)
	g := &gateway{bench: &bench{T: t, dir: t.TempDir(), store: filepath.Join(t.TempDir(), "bucket")}}
	if err := os.Mkdir(g.store, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--port", address, "--access", accessKey, "--secret", secretKey, "--quiet",
		"posix", "--sidecar", t.TempDir(), filepath.Dir(g.store))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() { cancel(); <-ended })
	limit := time.After(time.Minute)
	for {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			break
		}
		select {
		case <-ended:
			t.Fatalf("%s ended: %v", program, cmd.ProcessState)
		case <-limit:
			t.Fatalf("%s does not listen at %s", program, address)
		case <-time.After(20 * time.Millisecond):
		}
	}
	to := &url.URL{Scheme: "http", Host: address}
	pass := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host // it is signed
	}, ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := g.fault.Load(); f != nil && (*f)(w, r) {
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	g.url = "s3://bucket?region=us-east-1&use_path_style=true&endpoint=" + url.QueryEscape(proxy.URL)
	g.open("default")
	return g
}

// open opens the store with the credentials of a profile.
func (g *gateway) open(profile string) {
	g.Helper()
	keys := &keyring{}
	keys.add(g.T)
	s, err := copies.Open(g.Context(), g.url+"&profile="+profile, keys)
	if err != nil {
		g.Fatal(err)
	}
	g.Cleanup(func() { _ = s.Close() })
	g.s = s
}

// fails sets the fault, nil for none.
func (g *gateway) fails(f func(w http.ResponseWriter, r *http.Request) bool) {
	if f == nil {
		g.fault.Store(nil)
		return
	}
	g.fault.Store(&f)
}

// isData reports whether a request writes an object of data.
func isData(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/data-")
}

func unavailable(w http.ResponseWriter, _ *http.Request) bool {
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `<Error><Code>SlowDown</Code></Error>`)
	return true
}

// torn reads half of what is sent, and cuts the connection.
func torn(_ http.ResponseWriter, r *http.Request) bool {
	if !isData(r) {
		return false
	}
	_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
	panic(http.ErrAbortHandler)
}

// A copy that a fault of S3 ends is an error of the store and no damage. It leaves nothing that counts,
// the copy before can still be restored, and the next one succeeds.
func TestS3_FaultsEndACopy(t *testing.T) {
	if !withGateway(t) {
		return
	}
	g := newGateway(t)
	big := random(9 << 20)
	g.write("big", big)
	first, _ := g.save(nil)
	store := g.s
	for name, f := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"unavailable": unavailable, "torn": torn, "wrong credentials": nil,
		"unavailable for data": func(w http.ResponseWriter, r *http.Request) bool { return isData(r) && unavailable(w, r) },
	} {
		t.Run(name, func(t *testing.T) {
			g.write("new", []byte(name))
			g.fails(f)
			if f == nil {
				g.open("another")
			}
			_, _, _, err := g.s.Save(t.Context(), "cl", "sb1", &first, g.export)
			if fsm.CodeOf(err) != fsm.CodeScheduler || errors.Is(err, archive.ErrDamaged) {
				t.Errorf("the copy ended with %v", err)
			}
			if name != "torn" && name != "unavailable for data" {
				if err := g.s.Load(t.Context(), "cl", "sb1", first, io.Discard); fsm.CodeOf(err) != fsm.CodeScheduler {
					t.Errorf("a restore meanwhile: %v", err)
				}
			}
			g.fails(nil)
			g.s = store
			if err := g.s.Load(t.Context(), "cl", "sb1", first, io.Discard); err != nil {
				t.Errorf("the copy before: %v", err)
			}
			next, up := g.save(&first)
			if up != int64(len(name)) {
				t.Errorf("the next copy uploads %d bytes", up)
			}
			dir, err := g.load(next)
			if err != nil {
				t.Fatal(err)
			}
			g.has(dir, "big", big)
			g.has(dir, "new", []byte(name))
			if err := g.s.Collect(t.Context(), "cl", "sb1", first, 1); err != nil { // the others are later
				t.Error(err)
			}
		})
	}
}

// One failed request, and a slow server, end nothing.
func TestS3_ASlowServerThatFailsNowAndThen(t *testing.T) {
	if !withGateway(t) {
		return
	}
	g := newGateway(t)
	var n atomic.Int64
	g.fails(func(w http.ResponseWriter, r *http.Request) bool {
		<-time.After(50 * time.Millisecond)
		return n.Add(1)%4 == 2 && unavailable(w, r)
	})
	big := random(9 << 20)
	g.write("big", big)
	first, _ := g.save(nil)
	g.write("new", []byte("new"))
	second, up := g.save(&first)
	if up != 3 {
		t.Errorf("%d bytes uploaded", up)
	}
	if err := g.s.Collect(t.Context(), "cl", "sb1", second, 1); err != nil {
		t.Fatal(err)
	}
	dir, err := g.load(second)
	if err != nil {
		t.Fatal(err)
	}
	g.has(dir, "big", big)
	if n.Load() < 10 {
		t.Errorf("%d requests: the faults were not met", n.Load())
	}
}

// A rule of the bucket deletes objects. The check sees it, and the next copy is whole.
func TestS3_AnExpiryRuleDeletes(t *testing.T) {
	if !withGateway(t) {
		return
	}
	g := newGateway(t)
	g.write("a", random(5000))
	first, _ := g.save(nil)
	if err := g.s.Check(t.Context(), "cl", "sb1", first); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"data-000000.age", "manifest"} {
		if err := os.Remove(filepath.Join(g.store, "cl", "sb1", first.ID, name)); err != nil {
			t.Fatal(err)
		}
		if err := g.s.Check(t.Context(), "cl", "sb1", first); !errors.Is(err, archive.ErrDamaged) {
			t.Errorf("without %s: %v", name, err)
		}
		next, _, gone, err := g.s.Save(t.Context(), "cl", "sb1", &first, g.export)
		if err != nil || gone != 1 {
			t.Fatalf("without %s: %d are gone, %v", name, gone, err)
		}
		dir, err := g.load(next)
		if err != nil {
			t.Fatal(err)
		}
		g.has(dir, "a", random(5000))
	}
}

// A full disk of the store ends the copy, and the copy before stays.
func TestS3_Full(t *testing.T) {
	if !withGateway(t) {
		return
	}
	g := newGateway(t)
	if err := syscall.Mount("tmpfs", g.store, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("only root can mount a small disk: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(g.store, syscall.MNT_DETACH) })
	g.write("a", random(1<<20))
	first, _ := g.save(nil)
	g.write("b", random(9<<20))
	if _, _, _, err := g.s.Save(t.Context(), "cl", "sb1", &first, g.export); fsm.CodeOf(err) != fsm.CodeScheduler {
		t.Errorf("a copy into a full store: %v", err)
	}
	dir, err := g.load(first)
	if err != nil {
		t.Fatal(err)
	}
	g.has(dir, "a", random(1<<20))
	g.write("b", random(10))
	// What the failed copy left is of a later number than the state knows, and goes with the next.
	next, _ := g.save(&first)
	if err := g.s.Collect(t.Context(), "cl", "sb1", next, 1); err != nil {
		t.Fatal(err)
	}
	for _, name := range g.objects() {
		if !strings.HasPrefix(name, "cl/sb1/"+next.ID) && name != "cl/sb1/"+first.ID+"/data-000000.age" {
			t.Errorf("%s is left of the copy that failed", name)
		}
	}
	if _, err := g.load(next); err != nil {
		t.Fatal(err)
	}
}
