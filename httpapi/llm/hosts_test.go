package llm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// A connection to an address that no list names itself is refused, whatever name leads there.
func TestHosts_InternalAddressesAreRefused(t *testing.T) {
	t.Parallel()
	h := newHosts([]string{fsm.HostsVendors, "*.example.org"})
	for _, ip := range []string{
		"127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
		"224.0.0.1", "255.255.255.255",
		"::1", "::", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::127.0.0.1", "::169.254.169.254",
		"fe80::1", "fe80::1%lo", "fc00::1",
		"fd00:ec2::254", "fd00::1%lo", "64:ff9b::a9fe:a9fe", "64:ff9b::a9fe:a9fe%lo", "2002:7f00:1::%lo", "fec0::1%lo",
		"ff02::1",
	} {
		to := netip.AddrPortFrom(netip.MustParseAddr(ip), 443).String()
		for _, tls := range []bool{false, true} {
			if err := h.check(true, tls, to); !errors.Is(err, errHost) {
				t.Errorf("a listed name may lead to %s (TLS %t): %v", to, tls, err)
			}
		}
	}
	if err := h.check(true, true, "8.8.8.8:443"); err != nil {
		t.Errorf("a listed name does not lead to a public address: %v", err)
	}
	for what, err := range map[string]error{
		"without TLS": h.check(true, false,
			"8.8.8.8:443"), "without a listed name": h.check(false, true,
			"8.8.8.8:443"), "no address": h.check(true, true, "example.org:443"),
	} {
		if !errors.Is(err, errHost) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestHosts_WhatIsListedIsAllowed(t *testing.T) {
	t.Parallel()
	h := newHosts([]string{
		"10.1.2.0/24",
		"192.168.7.7:8080",
		"::1",
		"Models.Example.org",
		"*.example.net",
		"example.com:8443",
	})
	for to, want := range map[string]bool{
		"10.1.2.3:80": true, "[::ffff:10.1.2.3]:80": true, "10.1.3.1:80": false, "192.168.7.7:8080": true,
		"192.168.7.7:80": false, "[::1]:9": true, "127.0.0.1:9": false,
	} {
		if err := h.check(false, false, to); (err == nil) != want {
			t.Errorf("%s: %v", to, err)
		}
	}
	for address, want := range map[string]bool{
		"models.example.org:443": true, "MODELS.example.org.:443": true, "x.models.example.org:443": false,
		"a.b.example.net:443": true, "example.net:443": false,
		"badexample.net:443": false, "example.com:8443": true, "example.com:443": false, "api.openai.com:443": false,
	} {
		if h.named(address) != want {
			t.Errorf("%s is named: %t", address, !want)
		}
	}
	if h := newHosts([]string{fsm.HostLocal}); h.check(false, false, "127.0.0.1:1") != nil ||
		h.check(false, false, "[::1]:1") != nil || h.check(false, false, "10.0.0.1:1") == nil {
		t.Error("localhost does not mean loopback alone")
	}
}

// nameServer answers the n-th question for a name's addresses of a family with the n-th of them, and
// with the last from then on. IPv6 addresses are after "6 ".
type nameServer struct {
	mu        sync.Mutex
	addresses map[string][]string
}

// serveNames makes a name server that this process's resolver asks until the test ends.
func serveNames(t *testing.T, addresses map[string][]string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	was, s := net.DefaultResolver, &nameServer{addresses: addresses}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for b := make([]byte, 1500); ; {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(s.answer(b[:n]), from)
		}
	}()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = was
		conn.Close()
		<-done
	})
}

// answer makes the answer to a question (RFC 1035, section 4.1).
func (s *nameServer) answer(question []byte) []byte {
	var labels []string
	at := 12
	for question[at] != 0 {
		labels = append(labels, string(question[at+1:at+1+int(question[at])]))
		at += 1 + int(question[at])
	}
	end := at + 5
	out := append([]byte{}, question[:end]...)
	out[2], out[3] = 0x81, 0x80
	clear(out[6:12])
	name, kind := strings.ToLower(strings.Join(labels, ".")), binary.BigEndian.Uint16(question[at+1:])
	switch kind {
	case 1:
	case 28: // AAAA
		name = "6 " + name
	default:
		return out
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.addresses[name]
	if len(list) == 0 {
		return out
	}
	if len(list) > 1 {
		s.addresses[name] = list[1:]
	}
	out[7] = 1
	address := netip.MustParseAddr(list[0]).AsSlice()
	out = append(out, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(len(address)))
	return append(out, address...)
}

// A name is judged by the address that is dialled, at each connection: not by what it was at another.
func TestHosts_ANameThatChangesItsAddressIsJudgedAtEachConnection(
	t *testing.T,
) { //nolint:paralleltest // replaces the process's resolver
	serveNames(t, map[string][]string{
		"private.example.org": {
			"127.0.0.1",
		}, "metadata.example.org": {"169.254.169.254"}, "rebinds.example.org": {"127.0.0.2", "127.0.0.3"},
	})
	var reached sync.Map
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l,
		Config: &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			reached.Store(r.Host, r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
		})}}
	srv.Start()
	defer srv.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	get := func(via transports, name string) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+name+":"+port, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := via.RoundTrip(r)
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	open := newTransports(DefaultConfig(), fsm.LLM{Hosts: []string{"*.example.org"}})
	for _, name := range []string{"private.example.org", "metadata.example.org"} {
		if err := get(open, name); !errors.Is(err, errHost) {
			t.Errorf("%s: %v", name, err)
		}
	}
	one := newTransports(DefaultConfig(), fsm.LLM{Hosts: []string{"*.example.org", "127.0.0.2"}})
	if err := get(one, "rebinds.example.org"); err != nil {
		t.Fatalf("the listed address: %v", err)
	}
	one.close()
	if err := get(one, "rebinds.example.org"); !errors.Is(err, errHost) {
		t.Errorf("the name leads elsewhere now: %v", err)
	}
	if at, _ := reached.Load("rebinds.example.org:" + port); at != "127.0.0.2:"+port {
		t.Errorf("the request came to %v", at)
	}
	if at, there := reached.Load("private.example.org:" + port); there {
		t.Errorf("a refused request came to %v", at)
	}
}

// Names with AAAA records, IPv6 literals and the numeric forms that resolvers of libc take for an
// address: each connection is judged at the address that it is made to.
func TestHosts_IPv6AndNumericForms(t *testing.T) { //nolint:paralleltest // replaces the process's resolver
	serveNames(t, map[string][]string{
		"6 six.example.org": {
			"::1",
		}, "6 mapped.example.org": {"::ffff:127.0.0.1"}, "6 metadata.example.org": {"fd00:ec2::254"},
		"both.example.org": {"127.0.0.1"}, "6 both.example.org": {"::1"}, "6 nat64.example.org": {"64:ff9b::7f00:1"},
		// As a resolver that knows the forms would answer.
		"2130706433": {
			"127.0.0.1",
		}, "0x7f000001": {"127.0.0.1"}, "0177.0.0.1": {"127.0.0.1"}, "127.1": {"127.0.0.1"}, "0x7f.1": {"127.0.0.1"},
	})
	var reached atomic.Int64
	count := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	l, err := net.Listen("tcp", "[::]:0") // both families
	if err != nil {
		t.Skip("this machine has no IPv6: ", err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: count}}
	srv.Start()
	defer srv.Close()
	port := l.Addr().(*net.TCPAddr).Port
	get := func(list []string, host string) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		via := newTransports(DefaultConfig(), fsm.LLM{Hosts: list})
		defer via.close()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d", host, port), nil)
		if err != nil {
			return err
		}
		res, err := via.RoundTrip(r)
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	named := []string{"*.example.org", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0x7f.1"}
	for _, host := range []string{
		"six.example.org", "mapped.example.org", "metadata.example.org", "both.example.org", "nat64.example.org", "[::1]",
		"[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]", "[::ffff:7f00:1]", "[::]",
		"2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0x7f.1", "127.0.0.1", "0.0.0.0",
	} {
		// Go's resolver asks nobody for a number. libc's makes an address of it, which is judged.
		if err := get(named, host); !errors.Is(err, errHost) &&
			(err == nil || !strings.Contains(err.Error(), "no such host")) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if reached.Load() != 0 {
		t.Fatalf("%d connections were made", reached.Load())
	}
	for host, list := range map[string][]string{
		"[::1]": {
			"::1",
		}, "[0:0:0:0:0:0:0:1]": {
			"::1/128",
		}, "six.example.org": {"::1"}, "both.example.org": {fsm.HostLocal}, "[::ffff:127.0.0.1]": {"127.0.0.1"},
	} {
		if err := get(list, host); err != nil {
			t.Errorf("%s under %v: %v", host, list, err)
		}
	}
	if err := get([]string{fmt.Sprintf("[::1]:%d", port)}, "[::1]"); err != nil {
		t.Errorf("an IPv6 address with its port: %v", err)
	}
	if err := get([]string{"[::1]:1"}, "[::1]"); !errors.Is(err, errHost) {
		t.Errorf("another port: %v", err)
	}
}

func TestCheckHost_WhatAListTakes(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"vendors", "localhost", "llm.example.org", "llm.example.org:8000", "*.example.org", "10.1.2.3", "10.1.2.3:8000",
		"10.0.0.0/8", "::1", "[::1]", "[fd00::1]:8000", "fd00::/8", "llm2", "a-1.b-2",
	} {
		if err := CheckHost(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "https://x", "x/y", "user@x", "10.1.2", "10.1.2.3.4", "127.1", "2130706433", "2130706433:80", "0x7f000001",
		"0x7F.1", "0177.0.0.1", "10.0.0.0/33", "fd00::/129", "x/8", "[::1", "1.2.3.4:99999", "fd00::1::2", "*", "a.*.b",
	} {
		if CheckHost(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestEndpoint_ABaseURLIsHTTPWithoutUser(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{
		"https://models.example.org/v1/": "https://models.example.org/v1", "http://127.0.0.1:9/v1": "http://127.0.0.1:9/v1",
		"https://user:pass@models.example.org/v1": "", "https://user@127.0.0.1": "", "ftp://models.example.org": "",
		"file:///etc/passwd": "", "gopher://x/_": "",
		"unix:///run/x": "", "//models.example.org": "", "models.example.org": "", "https://": "", "https:///v1": "",
		"https://x/v1?a=b": "", "https://x/v1?api-version=1&key=a": "",
		"https://x/v1/chat/completions?api-version=1": "https://x/v1", "https://x/v1#a": "", "https://x y": "",
		"javascript:alert(1)": "", "https://api.openai.com\\@127.0.0.1/": "", "http://[::1": "",
	} {
		got, err := targetOf(operation{wire: wireOpenAI}, fsm.ModelEndpoint{BaseURL: base, Model: "openai/x"})
		if text := ""; err == nil {
			if text = got.String(); text != want {
				t.Errorf("%s became %q", base, text)
			}
		} else if want != "" {
			t.Errorf("%s: %v", base, err)
		} else if refused := refusalOf(err); refused.status != http.StatusBadRequest || refused.reason != reasonEndpoint ||
			strings.Contains(refused.text, "pass") {
			t.Errorf("%s: %+v", base, refused)
		}
	}
}

// Nothing but the operations that the gateway has reaches an endpoint with the owner's key.
func TestOperation_APathDoesNotLeaveTheAPI(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"/llm/v1/models/../files", "/llm/v1/models/%2e%2e/files", "/llm/v1/models/.%2E/files", "/llm/v1/models/..%2ffiles",
		"/llm/gemini/v1beta/models/%2e%2e%2ffiles:generateContent",
		"/llm/gemini/v1beta/models/..%2f..%2ffiles:generateContent",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if o, known := operationOf(httptest.NewRequest(method, path, nil)); known {
				t.Errorf("%s %s is %+v", method, path, o)
			}
		}
	}
	if _, known := operationOf(httptest.NewRequest(http.MethodGet, "/llm/v1/models/openai%2Fgpt-5.1", nil)); !known {
		t.Error("a model with a slash is not known")
	}
}
