package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster/peernet"
)

// dated is a node's certificates in fake time, in a folder of `bivouac tls`.
type dated struct {
	t        *testing.T
	dir      tlsDir
	log      bytes.Buffer
	registry *prometheus.Registry
	creds    *peernet.Credentials
	c        *certificates
}

func newDated(t *testing.T, lifetime time.Duration, o certificateOptions) *dated {
	t.Helper()
	d := &dated{t: t, dir: tlsDir(t.TempDir()), registry: prometheus.NewRegistry()}
	if err := d.dir.init(time.Now(), 3650*day); err != nil {
		t.Fatal(err)
	}
	files, err := d.dir.issue("n1", nil, time.Now(), lifetime)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&d.log, nil))
	creds, err := peernet.LoadCredentials(files, "n1", log)
	if err != nil {
		t.Fatal(err)
	}
	d.creds = creds
	d.c = newCertificates(o, creds, files, log, d.registry)
	return d
}

// gauge is the value of a metric, by its labels as they stand in the text format.
func (d *dated) gauge(name, labels string) float64 {
	d.t.Helper()
	families, err := d.registry.Gather()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var text []string
			for _, l := range m.GetLabel() {
				text = append(text, l.GetName()+"="+l.GetValue())
			}
			if f.GetName() == name && strings.Join(text, ",") == labels {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	d.t.Fatalf("no metric %s{%s}", name, labels)
	return 0
}

// lines counts the lines with all of the words since the last call.
func (d *dated) lines(words ...string) (count int) {
	for line := range strings.Lines(d.log.String()) {
		has := true
		for _, w := range words {
			has = has && strings.Contains(line, w)
		}
		if has {
			count++
		}
	}
	return count
}

// A certificate that nobody renews is logged from ten days on, once a day and at each start; when
// it has expired, as an error.
func TestCertificates_AreWarnedOfInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDated(t, 30*day, certificateOptions{})
		begin := time.Now()
		if got := d.gauge("bivouac_certificate_expiry_timestamp_seconds",
			"name=peer"); got != float64(begin.Add(30*day).Unix()) {
			t.Errorf("the metric says %v", got)
		}
		if got := d.gauge("bivouac_certificate_expiry_timestamp_seconds",
			"name=peer_ca"); got != float64(begin.Add(3650*day).Unix()) {
			t.Errorf("the CA's metric says %v", got)
		}
		warn := func(after time.Duration) { d.c.warn(begin.Add(after)) }
		for hour := range 20*24 - 1 {
			warn(time.Duration(hour) * time.Hour)
		}
		if text := d.log.String(); text != "" {
			t.Fatalf("with more than ten days left:\n%s", text)
		}
		for hour := range 10 * 24 {
			warn(20*day + time.Duration(hour)*time.Hour)
		}
		if got := d.lines("level=WARN", "name=peer ", "n1.pem", "tls renew"); got != 10 || d.lines() != 10 {
			t.Errorf("%d warnings in ten days:\n%s", got, d.log.String())
		}
		for _, left := range []string{"days_left=10", "days_left=5", "days_left=1"} {
			if d.lines(left) == 0 {
				t.Errorf("no line with %s:\n%s", left, d.log.String())
			}
		}
		warn(30 * day)
		if got := d.c.expiredNames(begin.Add(30 * day)); len(got) != 1 || got[0] != "peer" ||
			len(d.c.expiredNames(begin.Add(29*day))) != 0 {
			t.Errorf("expired: %v", got)
		}
		if d.lines("level=ERROR", "certificate has expired") != 1 {
			t.Errorf("no error at its end:\n%s", d.log.String())
		}
		for hour := range 3 * 24 {
			warn(30*day + time.Duration(hour)*time.Hour)
		}
		if got := d.lines("level=ERROR"); got != 3 {
			t.Errorf("%d errors in three days", got)
		}
		// Renewed, it is quiet. The next time it warns at once.
		if _, err := d.dir.issue("n1", nil, begin.Add(33*day), 30*day); err != nil {
			t.Fatal(err)
		}
		if err := d.creds.Reload(); err != nil {
			t.Fatal(err)
		}
		before := d.lines()
		warn(34 * day)
		warn(54 * day)
		if got := d.lines("level=WARN"); got != 11 {
			t.Errorf("%d warnings and %d lines more:\n%s", got, d.lines()-before, d.log.String())
		}
	})
}

// A node with the CA's key renews its certificate before it would be warned of.
func TestCertificates_ThatRenewThemselvesAreNotWarnedOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d *dated
		d = newDated(
			t,
			30*day,
			certificateOptions{issue: func(ctx context.Context, former *x509.Certificate) (peernet.PEM, error) {
				return peernet.CAIssuer(d.dir.ca(), d.dir.caKey(), 30*day)(ctx, former)
			}},
		)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.c.run(ctx) }()
		time.Sleep(65 * day)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if d.lines("level=WARN")+d.lines("level=ERROR") != 0 || d.lines("certificate renewed") != 3 {
			t.Errorf("in 65 days:\n%s", d.log.String())
		}
		if ok, failed := d.gauge("bivouac_certificate_renewals_total",
			"result=ok"), d.gauge("bivouac_certificate_renewals_total", "result=failed"); ok != 3 || failed != 0 {
			t.Errorf("%v renewals, %v failures", ok, failed)
		}
		if last := d.gauge("bivouac_certificate_last_renewal_timestamp_seconds",
			""); time.Since(time.Unix(int64(last), 0)) > 8*day {
			t.Errorf("the last renewal was at %v", last)
		}
	})
}

// The operator's way: what is due is renewed, with the same hosts, and the dates are shown.
func TestTLS_RenewAndShow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	d := tlsDir(dir)
	mustRun(t, nil, "tls", "init", "--dir", dir)
	mustRun(t, nil, "tls", "issue", "--dir", dir, "--node", "n1", "--host", "10.1.0.11", "--host", "n1.example.org")
	if _, err := d.issue("n2", []string{"10.1.0.12"}, time.Now().Add(-25*day), 30*day); err != nil {
		t.Fatal(err)
	}
	leaf := func(node string) *x509.Certificate {
		pair, err := peernet.ReadPair(d.node(node).CertFile, d.node(node).KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf
	}
	n1, n2 := leaf("n1"), leaf("n2")
	if left := time.Until(n1.NotAfter); left > 30*day || left < 29*day {
		t.Errorf("a new certificate is good for %v", left)
	}
	out := mustRun(t, nil, "tls", "renew", "--dir", dir)
	if !strings.Contains(out, "n1.pem  not due, until ") || !strings.Contains(out, "n2.pem  renewed, until ") ||
		!strings.Contains(out, "(29 days left)") {
		t.Errorf("it prints:\n%s", out)
	}
	if !leaf("n1").Equal(n1) || leaf("n2").Equal(n2) || leaf("n2").VerifyHostname("10.1.0.12") != nil {
		t.Error("renewed: the wrong ones, or for other hosts")
	}
	mustRun(t, nil, "tls", "renew", "--dir", dir, "--node", "n1")
	next := leaf("n1")
	if next.Equal(n1) || next.VerifyHostname("10.1.0.11") != nil || next.VerifyHostname("n1.example.org") != nil {
		t.Error("the named one is not renewed for its hosts")
	}
	out = mustRun(t, nil, "tls", "show", d.ca(), d.node("n1").CertFile)
	for _, want := range []string{"DAYS LEFT", "3649", "n1.node.bivouac", "10.1.0.11", peernet.Fingerprint(next)} {
		if !strings.Contains(out, want) {
			t.Errorf("it lacks %q:\n%s", want, out)
		}
	}
	if code, _, stderr := runCommand(t, nil, "tls", "show", d.node("n1").KeyFile); code != exitFailed ||
		!strings.Contains(stderr, "n1-key.pem: it holds a private key; name the file of the key's certificate") {
		t.Errorf("a key: exit %d, %s", code, stderr)
	}
	if code, _, stderr := runCommand(t, nil, "tls", "renew", "--dir", t.TempDir()); code != exitFailed ||
		!strings.Contains(stderr, "no node's certificate") {
		t.Errorf("an empty folder: exit %d, %s", code, stderr)
	}
	if err := os.Remove(d.caKey()); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := runCommand(t, nil, "tls", "renew", "--dir", dir, "--all"); code != exitFailed ||
		!strings.Contains(stderr, "ca-key.pem") {
		t.Errorf("without the CA's key: exit %d, %s", code, stderr)
	}
}
