package git

import (
	"context"
	"errors"
	"net"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

func TestCheckAddress(t *testing.T) {
	for address, fine := range map[string]bool{
		"140.82.112.3:443": true, "[2606:4700::1111]:443": true, "127.0.0.1:80": false, "[::1]:80": false,
		"10.1.1.1:80":  false,
		"172.16.0.1:1": false, "192.168.0.1:1": false, "169.254.169.254:80": false, "[fd00::1]:80": false,
		"[fe80::1%eth0]:80":    false,
		"[::ffff:10.0.0.1]:80": false, "0.0.0.0:80": false, "224.0.0.1:80": false, "255.255.255.255:80": false,
		"100.100.100.200:80": false,
		"[2002:7f00:1::]:80": false, "not an address": false,
	} {
		if got := checkAddress(address) == nil; got != fine {
			t.Errorf("%s allowed: %v", address, got)
		}
	}
}

func TestPolicyTransport_LooksAtTheAddressWhenDialling(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	tr := newPolicyTransport([]string{"localhost:1"}, DefaultConfig().Timeout)
	// A name that resolves to this machine.
	if _, err := tr.DialContext(context.Background(), "tcp", "localhost:"+port); !errors.Is(err, errHostPolicy) {
		t.Fatalf("dialling gave %v", err)
	}
}

func TestProbeFor_Defaults(t *testing.T) {
	for kind, want := range map[fsm.ProviderType]string{
		"github": "https://api.github.com/user", "gitlab": "https://gitlab.com/api/v4/user",
		"bitbucket": "https://api.bitbucket.org/2.0/user", "forgejo": "https://codeberg.org/api/v1/user",
		"azure_devops": "https://app.vssps.visualstudio.com/_apis/profile/profiles/me?api-version=7.1",
	} {
		p, err := probeFor(kind, "", []string{"https"})
		if err != nil || p.url != want {
			t.Errorf("%s: %s %v", kind, p.url, err)
		}
	}
	for host, want := range map[string]string{
		"github.com": "https://api.github.com/user", "https://github.com/": "https://api.github.com/user",
		"ghe.example.org":                 "https://ghe.example.org/api/v3/user",
		"https://ghe.example.org:8443/x/": "https://ghe.example.org:8443/x/api/v3/user",
	} {
		p, err := probeFor("github", host, []string{"https"})
		if err != nil || p.url != want {
			t.Errorf("%s: %s %v", host, p.url, err)
		}
	}
	if _, err := probeFor("bitbucket_data_center", "", nil); err == nil {
		t.Error("bitbucket_data_center has no default host")
	}
}
