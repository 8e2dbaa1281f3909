package peernet

import (
	"testing"
	"time"
)

func TestCertificates_Issue_BoundsAndNames(t *testing.T) {
	ca := authorityFor(t)
	now := time.Now()
	pair, err := Issue(ca, "a", []string{"a.example", "10.0.0.1"}, now, 100*365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf := keyPair(t, pair).Leaf
	if leaf.NotAfter.After(now.Add(time.Hour + time.Minute)) {
		t.Errorf("the certificate outlives its CA: %v", leaf.NotAfter)
	}
	for _, name := range []string{"a.node.bivouac", "server.bivouac", "a.example", "10.0.0.1"} {
		if err := leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	for _, test := range []struct {
		node string
		host string
	}{{"A", ""}, {"", ""}, {"a.b", ""}, {"a", "b.node.bivouac"}, {"a", "server.bivouac"}} {
		if _, err := Issue(ca, test.node, []string{test.host}, now, time.Hour); err == nil {
			t.Errorf("issued a certificate for node %q, host %q", test.node, test.host)
		}
	}
	if _, err := Issue(PEM{ca.Certificate, authorityFor(t).Key}, "a", nil, now, time.Hour); err == nil {
		t.Error("signed with a key that is not the CA's")
	}
	if _, err := Issue(pair, "b", nil, now, time.Hour); err == nil {
		t.Error("a node's certificate signed another")
	}
}
