package peernet

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const oneDay = 24 * time.Hour

// textLog is a log that can be read while it is written.
type textLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *textLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *textLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// overwrite replaces a file without a sync, which fake time does not need.
func overwrite(path string, data []byte, mode os.FileMode) error {
	return errors.Join(os.WriteFile(path+".tmp", data, mode), os.Rename(path+".tmp", path))
}

// renewing is a node that renews its certificate, in fake time.
type renewing struct {
	t     *testing.T
	ca    PEM
	files TLSFiles
	caKey string
	log   textLog
	creds *Credentials
	r     *Renewal

	mu      sync.Mutex
	issue   Issuer
	replace ReplaceFile
	done    []error
}

// with replaces what the renewal works with.
func (n *renewing) with(issue Issuer, replace ReplaceFile) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.issue, n.replace = issue, replace
}

func newRenewing(t *testing.T, lifetime time.Duration) *renewing {
	t.Helper()
	ca, err := NewCA(time.Now(), 3650*oneDay)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := Issue(ca, "a", []string{"a.example", "10.0.0.1"}, time.Now(), lifetime)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	n := &renewing{t: t, ca: ca, files: write(t, dir, ca, pair), caKey: filepath.Join(dir, "ca-key.pem")}
	put(t, n.caKey, ca.Key)
	log := slog.New(slog.NewTextHandler(&n.log, nil))
	if n.creds, err = LoadCredentials(n.files, "a", log); err != nil {
		t.Fatal(err)
	}
	n.with(n.byCA(), overwrite)
	n.r = &Renewal{
		Credentials: n.creds, Logger: log, Done: func(err error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.done = append(n.done, err)
		},
		Issue: func(ctx context.Context, former *x509.Certificate) (PEM, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.issue(ctx, former)
		},
		Replace: func(path string, data []byte, mode os.FileMode) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.replace(path, data, mode)
		},
	}
	return n
}

// attempts are the results of all attempts so far.
func (n *renewing) attempts() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.done)
}

func (n *renewing) byCA() Issuer { return CAIssuer(n.files.CAFile, n.caKey, 30*oneDay) }

// run renews until the test in the bubble ends.
func (n *renewing) run() {
	ctx, stop := context.WithCancel(n.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.r.Run(ctx) }()
	n.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			n.t.Error(err)
		}
	})
}

// starts fails the test unless a node would start with the files.
func (n *renewing) starts() *x509.Certificate {
	n.t.Helper()
	c, err := LoadCredentials(n.files, "a", slog.New(slog.DiscardHandler))
	if err != nil {
		n.t.Fatalf("a node would not start: %v", err)
	}
	return c.Leaf()
}

func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A certificate is replaced when a third of its life is left, with another key, for the same names,
// and it is in use at once; for years.
func TestRenewal_ACertificateNeverExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRenewing(t, 30*oneDay)
		first := n.creds.Leaf()
		n.run()
		sleep(19 * oneDay)
		if leaf := n.creds.Leaf(); !leaf.Equal(first) {
			t.Fatalf("renewed after 19 days: %v", leaf.NotAfter)
		}
		sleep(oneDay + time.Hour)
		second := n.creds.Leaf()
		if left := time.Until(second.NotAfter); left < 29*oneDay || left > 30*oneDay {
			t.Fatalf("after 20 days it is good for %v\n%s", left, n.log.String())
		}
		if bytes.Equal(second.RawSubjectPublicKeyInfo, first.RawSubjectPublicKeyInfo) {
			t.Error("the key is the former one")
		}
		if !slices.Equal(second.DNSNames, first.DNSNames) ||
			!slices.EqualFunc(second.IPAddresses, first.IPAddresses, slices.Equal) {
			t.Errorf("other names: %v %v", second.DNSNames, second.IPAddresses)
		}
		if !n.starts().Equal(second) {
			t.Error("the files have another certificate")
		}
		for range 200 {
			sleep(5 * oneDay)
			if left := time.Until(n.creds.Leaf().NotAfter); left < 9*oneDay {
				t.Fatalf("%v are left\n%s", left, n.log.String())
			}
		}
		done := n.attempts()
		if slices.ContainsFunc(done, func(err error) bool { return err != nil }) || len(done) < 45 {
			t.Errorf("%d renewals: %v", len(done), done)
		}
		if entries, _ := os.ReadDir(filepath.Dir(n.files.KeyFile)); len(entries) != 4 {
			t.Errorf("files are left: %v", entries)
		}
	})
}

// A node that was off for long, with a certificate that expired, renews it when it starts.
func TestRenewal_AnExpiredCertificateIsRenewedAtTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRenewing(t, 30*oneDay)
		sleep(100 * oneDay)
		n.run()
		synctest.Wait()
		if left := time.Until(n.creds.Leaf().NotAfter); left < 29*oneDay {
			t.Errorf("%v are left\n%s", left, n.log.String())
		}
	})
}

// A renewal that fails is tried again, at least hourly, and logged. Meanwhile the former pair stays
// in use and on the disk, whole.
func TestRenewal_AFailureLeavesTheFormerPair(t *testing.T) {
	t.Parallel()
	other := func(n *renewing) PEM {
		ca, err := NewCA(time.Now(), 3650*oneDay)
		if err != nil {
			n.t.Fatal(err)
		}
		return ca
	}
	full := func(suffix string) func(*renewing) {
		return func(n *renewing) {
			n.with(n.byCA(), func(path string, data []byte, mode os.FileMode) error {
				if strings.HasSuffix(path, suffix) {
					return &fs.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
				}
				return overwrite(path, data, mode)
			})
		}
	}
	issues := func(issue func(n *renewing) (PEM, error)) func(*renewing) {
		return func(n *renewing) {
			n.with(func(context.Context, *x509.Certificate) (PEM, error) { return issue(n) }, overwrite)
		}
	}
	for name, test := range map[string]struct {
		harm func(*renewing)
		says string
	}{
		"no CA key":           {func(n *renewing) { gone(n.t, n.caKey, n.files) }, "can't be read"},
		"an unreadable key":   {func(n *renewing) { unreadable(n.t, n.caKey, n.files) }, "can't be read"},
		"a damaged CA key":    {func(n *renewing) { cut(n.t, n.caKey, n.files) }, "CA key"},
		"another CA's key":    {func(n *renewing) { put(n.t, n.caKey, other(n).Key) }, "don't belong together"},
		"no room for the key": {full(".next"), "no space left"},
		"no room for it":      {full("node.pem"), "no space left"},
		"Vault is sealed": {
			issues(func(*renewing) (PEM, error) { return PEM{}, errors.New("Vault is sealed") }),
			"Vault is sealed",
		},
		"another node's": {issues(func(n *renewing) (PEM, error) {
			return Issue(n.ca, "b", nil, time.Now(), 30*oneDay)
		}), "certificate, this is"},
		"another CA's": {issues(func(n *renewing) (PEM, error) {
			return Issue(other(n), "a", nil, time.Now(), 30*oneDay)
		}), "is no certificate of the CA"},
		"half of it": {issues(func(n *renewing) (PEM, error) {
			pair, err := Issue(n.ca, "a", nil, time.Now(), 30*oneDay)
			return PEM{Certificate: pair.Certificate[:100], Key: pair.Key}, err
		}), "damaged"},
		"another key": {issues(func(n *renewing) (PEM, error) {
			pair, err := Issue(n.ca, "a", nil, time.Now(), 30*oneDay)
			return PEM{Certificate: pair.Certificate, Key: issue(n.t, n.ca, "a", time.Now(), oneDay).Key}, err
		}), "is not the key of"},
		"a clock that is ahead": {issues(func(n *renewing) (PEM, error) {
			return Issue(n.ca, "a", nil, time.Now().Add(oneDay), 30*oneDay)
		}), "clock"},
		"a clock that is behind": {issues(func(n *renewing) (PEM, error) {
			return Issue(n.ca, "a", nil, time.Now().Add(-40*oneDay), 30*oneDay)
		}), "clock"},
		"nothing won": {issues(func(n *renewing) (PEM, error) {
			return Issue(n.ca, "a", nil, time.Now(), time.Until(n.creds.Leaf().NotAfter))
		}), "no later than the present one"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newRenewing(t, 30*oneDay)
				first := n.creds.Leaf()
				test.harm(n)
				n.run()
				sleep(21 * oneDay)
				done := n.attempts()
				tried := len(done)
				if !n.creds.Leaf().Equal(first) || !n.starts().Equal(first) {
					t.Fatal("the former pair is gone")
				}
				if tried < 20 || done[0] == nil || !strings.Contains(done[tried-1].Error(), test.says) {
					t.Fatalf("%d attempts in a day: %v, want %q", tried, done, test.says)
				}
				if got := strings.Count(n.log.String(), "level=WARN"); got != tried ||
					!strings.Contains(n.log.String(), test.says) {
					t.Errorf("%d warnings of %d failures, want %q", got, tried, test.says)
				}
				sleep(10 * oneDay) // it expires
				if !strings.Contains(n.log.String(), "level=ERROR") {
					t.Error("after the end a failure is no error")
				}
				if err := os.RemoveAll(n.caKey); err != nil {
					t.Fatal(err)
				}
				put(t, n.caKey, n.ca.Key)
				n.with(n.byCA(), overwrite)
				sleep(time.Hour + time.Minute)
				done = n.attempts()
				if left := time.Until(n.creds.Leaf().NotAfter); left < 29*oneDay || done[len(done)-1] != nil {
					t.Errorf("mended, it is not renewed: %v, %v", left, done[len(done)-1])
				}
			})
		})
	}
}

// A certificate that was made while the clock was ahead is replaced once the clock is right: peers
// refuse it until then.
func TestRenewal_ACertificateFromTheFutureIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRenewing(t, 30*oneDay)
		write(t, filepath.Dir(n.files.CertFile), n.ca, issue(t, n.ca, "a", time.Now().Add(12*oneDay), 30*oneDay))
		if err := n.creds.Reload(); err != nil {
			t.Fatal(err)
		}
		n.run()
		synctest.Wait()
		if begin := n.creds.Leaf().NotBefore; begin.After(time.Now()) {
			t.Errorf("it begins at %v\n%s", begin, n.log.String())
		}
	})
}

// Wherever the replacement of a pair is interrupted, a node starts, with the old or the new pair;
// and once a node ran, the key is where it belongs.
func TestWritePair_KilledAnywhereANodeStarts(t *testing.T) {
	killed := errors.New("killed")
	for step := range 6 {
		ca := authorityFor(t)
		files := write(t, t.TempDir(), ca, issue(t, ca, "a", time.Now(), time.Hour))
		next := issue(t, ca, "a", time.Now(), time.Hour)
		left := step
		err := WritePair(files, next, func(path string, data []byte, mode os.FileMode) error {
			if left--; left < 0 {
				return killed
			}
			if err := overwrite(path, data, mode); err != nil {
				return err
			}
			if left--; left < 0 {
				return killed
			}
			return nil
		})
		if !errors.Is(err, killed) {
			t.Fatalf("step %d: %v", step, err)
		}
		c, err := LoadCredentials(files, "a", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Errorf("step %d: a node does not start: %v", step, err)
			continue
		}
		block, _ := pem.Decode(next.Certificate)
		if isNew := bytes.Equal(c.Leaf().Raw, block.Bytes); isNew != (step >= 3) {
			t.Errorf("step %d: the new pair: %v", step, isNew)
		}
		if err := CompletePair(files, overwrite); err != nil {
			t.Fatal(err)
		}
		if pair, err := readPair(files.CertFile, files.KeyFile); err != nil || !pair.Leaf.Equal(c.Leaf()) {
			t.Errorf("step %d: completed, the pair is %v", step, err)
		}
	}
}
