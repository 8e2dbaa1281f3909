package main

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bivouac.dev/bivouac/cluster/peernet"
)

// The results of one check of `bivouac server --check`.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"
)

// expiryWarning is how long before its end a certificate is warned of.
const expiryWarning = 10 * day

// finding is one line of `bivouac server --check`.
type finding struct {
	Result string `json:"result"`
	// Subject is the member of the file, such as "peer.key_file".
	Subject string `json:"subject"`
	Detail  string `json:"detail"`
}

// inspection collects findings about what a configuration refers to on this machine. It asks
// nobody: a sealed Vault must not keep a node from starting.
type inspection struct {
	now   time.Time
	found []finding
	// endedFails: a certificate that has expired fails. At a start it only warns: the clock may be
	// wrong, and the node reads a renewed one without a restart.
	endedFails bool
}

// inspect checks the files, modes and certificates of a configuration, and what it leaves open.
func inspect(c Config, configFile string, now time.Time) []finding {
	i := &inspection{now: now}
	i.all(c, configFile)
	return i.found
}

// all makes every check of `server --check`.
func (i *inspection) all(c Config, configFile string) {
	if i.public("config", configFile) {
		i.add(checkOK, "config", "%s", configFile)
	}
	i.dataDir(c.DataDir)
	if c.Raft.LogStore == "boltdb" {
		i.add(checkWarn, "raft.log_store", "without effect: the log is in %s/wal; remove the line", c.DataDir)
	}
	i.http(c.HTTP)
	i.peer(c)
	i.nomad(c.Nomad)
	i.vault(c.Vault)
	i.limits(c.Limits)
	i.proxies(c.Limits.TrustedProxies)
	i.backups(c)
	i.ui(c.UI)
	if c.Metrics != "" { // without a warning: metrics have numbers and no secrets
		i.add(checkOK, "metrics.address", "%s", c.Metrics)
	}
}

// backups looks at the directory of backups. What is wrong with it keeps no node from starting.
func (i *inspection) backups(c Config) {
	const subject = "backup.dir"
	worst := checkWarn
	if i.endedFails {
		worst = checkFail
	}
	dir := c.Backup.Dir
	err := error(nil)
	if dir != "" {
		err = writable(dir)
	}
	switch inside, bad := filepath.Rel(c.DataDir, dir); {
	case dir == "" && i.endedFails:
		i.add(checkWarn, subject, "not set: this node makes no backups while it leads (bivouac runbook backup)")
	case dir == "":
	case err != nil:
		i.add(worst, subject, "no backup can be written: %s (bivouac runbook backup)", err)
	case bad == nil && filepath.IsLocal(inside):
		i.add(checkWarn, subject, "%s is inside data_dir, which a repair moves or removes: "+
			"take a directory outside (bivouac runbook backup)", dir)
	default:
		i.add(checkOK, subject, "%s", dir)
	}
}

// logFindings writes a line for each finding that is not ok.
func logFindings(log *slog.Logger, found []finding) {
	for _, f := range found {
		switch f.Result {
		case checkWarn:
			log.Warn("configuration check", "subject", f.Subject, "reason", f.Detail)
		case checkFail:
			log.Error("configuration check failed", "subject", f.Subject, "reason", f.Detail)
		}
	}
}

// printFindings prints a line for each finding. The error is exitStatus if one of them failed.
func (p *program) printFindings(found []finding, asJSON bool) error {
	worst := checkOK
	for _, f := range found {
		if f.Result == checkFail || worst == checkOK {
			worst = f.Result
		}
	}
	if asJSON {
		if err := printJSON(p.stdout, map[string]any{"result": worst, "checks": found}); err != nil {
			return err
		}
	} else {
		for _, f := range found {
			if _, err := fmt.Fprintf(p.stdout, "%-4s  %s: %s\n", f.Result, f.Subject, f.Detail); err != nil {
				return err
			}
		}
	}
	if worst == checkFail {
		return exitStatus(exitFailed)
	}
	return nil
}

func (i *inspection) add(result, subject, format string, args ...any) {
	i.found = append(i.found, finding{result, subject, fmt.Sprintf(format, args...)})
}

// file checks that a file is there and that others have none of the given permissions.
func (i *inspection) file(subject, path string, others fs.FileMode, can string) bool {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		i.add(checkFail, subject, "%s can't be read: %s", path, causeOf(err))
	case !info.Mode().IsRegular():
		i.add(checkFail, subject, "%s is no file", path)
	case info.Size() == 0:
		i.add(checkFail, subject, "%s is empty", path)
	case info.Mode().Perm()&others != 0:
		i.add(checkFail, subject, "%s has mode %04o: others can %s it", path, info.Mode().Perm(), can)
	default:
		return true
	}
	return false
}

// public checks a file that others may read and nobody else may change.
func (i *inspection) public(subject, path string) bool { return i.file(subject, path, 0o002, "change") }

// private checks a file that holds a secret. Its group may read it.
func (i *inspection) private(subject, path string) bool {
	return i.file(subject, path, 0o007, "read or change")
}

// secret checks a file that holds nothing but a secret.
func (i *inspection) secret(subject, path string) {
	if path == "" || !i.private(subject, path) {
		return
	}
	value, err := readSecretFile(path)
	switch {
	case err != nil:
		i.add(checkFail, subject, "%s can't be read: %s", path, causeOf(err))
	case value == "":
		i.add(checkFail, subject, "%s is empty", path)
	default:
		i.add(checkOK, subject, "%s", path)
	}
}

// authorities checks a file of CA certificates. An old one may stand beside its successor.
func (i *inspection) authorities(subject, path string) {
	if path == "" || !i.public(subject, path) {
		return
	}
	end, err := peernet.LastExpiry(path)
	if err != nil {
		i.add(checkFail, subject, "%s", err)
		return
	}
	i.expiry(subject, path, end)
}

// pair checks a certificate and its key, which are one subject: "peer" or "http.tls".
func (i *inspection) pair(subject, certFile, keyFile string) {
	if certFile == "" {
		return
	}
	whole := i.public(subject+".cert_file", certFile)
	if whole = i.private(subject+".key_file", keyFile) && whole; !whole {
		return
	}
	pair, err := peernet.ReadPair(certFile, keyFile)
	if err != nil {
		i.add(checkFail, subject+".cert_file", "%s", err)
		return
	}
	names := strings.Join(slices.Concat(pair.Leaf.DNSNames,
		peernet.Hosts(&x509.Certificate{IPAddresses: pair.Leaf.IPAddresses})), ", ")
	i.expiry(subject+".cert_file", fmt.Sprintf("%s (for %s)", certFile, cmp.Or(names, pair.Leaf.Subject.CommonName)),
		pair.Leaf.NotAfter)
	i.add(checkOK, subject+".key_file", "%s", keyFile)
}

// expiry judges a certificate's end.
func (i *inspection) expiry(subject, path string, end time.Time) {
	switch left := end.Sub(i.now); {
	case left <= 0 && i.endedFails:
		i.add(checkFail, subject, "%s expired on %s (bivouac runbook certificates)", path, formatTime(end))
	case left <= 0:
		i.add(checkWarn, subject, "%s expired on %s (bivouac runbook certificates)", path, formatTime(end))
	case left <= expiryWarning:
		i.add(checkWarn, subject, "%s expires on %s (bivouac runbook certificates)", path, untilText(end, i.now))
	default:
		i.add(checkOK, subject, "%s, until %s", path, untilText(end, i.now))
	}
}

// dataDir accepts a missing directory, which the first start creates.
func (i *inspection) dataDir(path string) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		i.add(checkOK, "data_dir", "%s will be created", path)
	case err != nil:
		i.add(checkFail, "data_dir", "%s can't be read: %s", path, causeOf(err))
	case !info.IsDir():
		i.add(checkFail, "data_dir", "%s is no directory", path)
	case info.Mode().Perm()&0o007 != 0:
		i.add(checkWarn, "data_dir", "%s has mode %04o: others can read the state; chmod 700", path, info.Mode().Perm())
	default:
		if fs, ok := roomOf(path, roomTimeout); ok && int64(fs.Bavail)*fs.Bsize < roomFail {
			i.add(checkWarn, "data_dir", "%s: %s are left: the node stops when it is full; make room (bivouac runbook disk)",
				path, sizeText(int64(fs.Bavail)*fs.Bsize))
			return
		}
		i.add(checkOK, "data_dir", "%s", path)
	}
}

func (i *inspection) http(c HTTPConfig) {
	i.pair("http.tls", c.CertFile, c.KeyFile)
	host, _, err := net.SplitHostPort(c.Address)
	if c.CertFile == "" && (err != nil || !isLoopback(host)) {
		i.add(checkWarn, "http.address",
			"plain HTTP on %s: API keys and secrets cross the network readable; set http { tls {} }, "+
				"or let a firewall admit the load balancer alone", c.Address)
		return
	}
	i.add(checkOK, "http.address", "%s", c.Address)
}

// proxies refuses networks that are too wide to hold load balancers alone: whoever is in one says which
// address its requests come from, and has no limit of connections.
func (i *inspection) proxies(trusted []string) {
	for _, text := range trusted {
		prefix, err := parsePrefix(text)
		if err != nil {
			continue // loadConfig has refused it
		}
		least := 8
		if prefix.Addr().Is6() {
			least = 16
		}
		if prefix.Bits() < least {
			i.add(checkFail, "limits.trusted_proxies",
				"%s has nearly every address: any client could choose the one it is counted by; name the load balancers", text)
		}
	}
}

// peer checks the files as the peer port does, which also finds another node's or cluster's.
func (i *inspection) peer(c Config) {
	before := len(i.found)
	i.authorities("peer.ca_file", c.Peer.CAFile)
	i.pair("peer", c.Peer.CertFile, c.Peer.KeyFile)
	i.renewal(c.Peer)
	for _, f := range i.found[before:] {
		if f.Result == checkFail {
			return
		}
	}
	if _, err := peernet.LoadCredentials(c.Peer.tls(), c.NodeName, slog.New(slog.DiscardHandler)); err != nil {
		i.add(checkFail, "peer.cert_file", "%s", err)
	}
}

// renewal checks what a node needs to renew its certificate, long before it does.
func (i *inspection) renewal(c PeerConfig) {
	if c.CAKeyFile != "" && i.private("peer.ca_key_file", c.CAKeyFile) {
		if err := peernet.CheckCAKey(c.CAFile, c.CAKeyFile); err != nil {
			i.add(checkWarn, "peer.ca_key_file", "the certificate can't be renewed: %s", err)
		} else {
			i.add(checkOK, "peer.ca_key_file", "%s", c.CAKeyFile)
		}
	}
	if !c.renews() {
		return
	}
	for _, dir := range slices.Compact([]string{filepath.Dir(c.CertFile), filepath.Dir(c.KeyFile)}) {
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			i.add(checkWarn, "peer.cert_file", "the certificate can't be renewed: %s can't be written: %s", dir, err)
		}
	}
}

func (i *inspection) nomad(c NomadConfig) {
	i.client("nomad", c.Address, "Nomad's token and the sandboxes' jobs")
	i.secret("nomad.token_file", c.TokenFile)
	i.authorities("nomad.ca_file", c.CAFile)
	i.pair("nomad", c.CertFile, c.KeyFile)
	if c.DockerNetwork == "" || c.DockerNetwork == "bridge" {
		i.add(checkWarn, "nomad.docker_network", "containers are on docker's bridge: they reach each other and their machine")
		return
	}
	i.add(checkOK, "nomad.docker_network", "%s", c.DockerNetwork)
}

func (i *inspection) vault(c VaultConfig) {
	i.client("vault", c.Address, "Vault's token and every secret")
	i.secret("vault.role_id_file", c.RoleIDFile)
	i.secret("vault.secret_id_file", c.SecretIDFile)
	i.authorities("vault.ca_file", c.CAFile)
}

// client checks the address of a server that this node calls.
func (i *inspection) client(subject, address, what string) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && !isLoopback(u.Hostname()) {
		i.add(checkWarn, subject+".address", "%s without TLS: %s cross the network readable", address, what)
		return
	}
	i.add(checkOK, subject+".address", "%s", address)
}

func (i *inspection) limits(c LimitsConfig) {
	var open []string
	if c.User.Running == 0 && c.User.Total == 0 {
		open = append(open, "one user's sandboxes (limits { user {} })")
	}
	if c.Installation.Running == 0 && c.Installation.Total == 0 {
		open = append(open, "all sandboxes (limits { installation {} })")
	}
	if c.RatePerSecond == 0 {
		open = append(open, "requests of one address (limits { rate_per_second })")
	}
	if len(open) > 0 {
		i.add(checkWarn, "limits", "no limit on %s", strings.Join(open, ", "))
		return
	}
	i.add(checkOK, "limits", "set")
}

// isLoopback reports whether a host is this machine alone.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// causeOf is an error of the file system without the path, which the caller names.
func causeOf(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// readSecretFile reads a file that holds one secret; "" means no file.
func readSecretFile(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}
