package peernet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// serverName is in every node's certificate, and a dialling node verifies it: a
	// certificate of the same CA made for another purpose is no node's. Nomad and Consul do
	// the same.
	serverName = "server.bivouac"
	// nodeDomain follows the node's name in its certificate.
	nodeDomain = ".node.bivouac"
	// clockLeeway is how far back certificates begin, for clocks that differ.
	clockLeeway = 5 * time.Minute

	// DefaultCALifetime is the default of `bivouac tls init`.
	DefaultCALifetime = 10 * 365 * 24 * time.Hour
	// DefaultNodeLifetime is the default of `bivouac tls issue` and of certificates that nodes
	// renew themselves. It bounds what a stolen certificate is good for.
	DefaultNodeLifetime = 30 * 24 * time.Hour
)

// PEM is a certificate with its private key, as they stand in files.
type PEM struct {
	Certificate []byte
	Key         []byte
}

// NewCA makes a cluster CA: ECDSA P-256, self-signed, for node certificates only (it can't
// sign further CAs). Whoever has its key can join the cluster as any node.
// `bivouac tls init`, `bivouac dev` and tests call it.
func NewCA(now time.Time, lifetime time.Duration) (PEM, error) {
	serial, err := newSerial()
	if err != nil {
		return PEM{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "Bivouac cluster CA " + serial.Text(16)[:8]},
		NotBefore:             now.Add(-clockLeeway),
		NotAfter:              now.Add(lifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return sign(template, nil)
}

// Issue makes a node's certificate, for both ends of a connection, with the
// DNS names <node>.node.bivouac and server.bivouac and any further hosts (names
// or addresses). It ends with the CA at the latest.
func Issue(ca PEM, node string, hosts []string, now time.Time, lifetime time.Duration) (PEM, error) {
	if !ValidNodeName(node) {
		return PEM{}, fmt.Errorf("node name %q must be a DNS label: 1 to 63 of a-z, 0-9 and '-'", node)
	}
	parent, err := parseCA(ca)
	if err != nil {
		return PEM{}, err
	}
	serial, err := newSerial()
	if err != nil {
		return PEM{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: node + nodeDomain},
		NotBefore:    now.Add(-clockLeeway),
		NotAfter:     now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:     []string{node + nodeDomain, serverName},
	}
	if template.NotAfter.After(parent.certificate.NotAfter) {
		template.NotAfter = parent.certificate.NotAfter
	}
	for _, h := range hosts {
		switch ip := net.ParseIP(h); {
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case strings.HasSuffix(h, nodeDomain) || h == serverName || h == "":
			return PEM{}, fmt.Errorf("host %q can't be added: names below %q are the nodes' own", h, nodeDomain)
		default:
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	return sign(template, parent)
}

// Hosts are the hosts beside the node's own names that a certificate was issued with.
func Hosts(c *x509.Certificate) []string {
	var hosts []string
	for _, name := range c.DNSNames {
		if name != serverName && !strings.HasSuffix(name, nodeDomain) {
			hosts = append(hosts, name)
		}
	}
	for _, ip := range c.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// parseCA reads a CA. Of several certificates it takes the one that the key belongs to: while a
// CA is replaced, the file has the former one too.
func parseCA(ca PEM) (*authority, error) {
	block, _ := pem.Decode(ca.Key)
	if block == nil {
		return nil, errors.New("the CA key is not PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading CA key: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the CA key is not an ECDSA key")
	}
	for rest := ca.Certificate; ; {
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("the CA certificate and key don't belong together")
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading CA certificate: %w", err)
		}
		if certificate.IsCA && key.PublicKey.Equal(certificate.PublicKey) {
			return &authority{certificate, key}, nil
		}
	}
}

// sign makes a key and has the parent sign it; without a parent, itself.
func sign(template *x509.Certificate, parent *authority) (PEM, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return PEM{}, fmt.Errorf("making key: %w", err)
	}
	if parent == nil {
		parent = &authority{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.certificate, key.Public(), parent.key)
	if err != nil {
		return PEM{}, fmt.Errorf("signing certificate: %w", err)
	}
	encoded, err := encodeKey(key)
	return PEM{Certificate: pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: der}), Key: encoded}, err
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("drawing serial number: %w", err)
	}
	return serial.SetBit(serial, 127, 1), nil // never short
}

// ValidNodeName reports whether a node's name is a DNS label of lower-case letters: it stands
// in certificates and begins the member's id.
func ValidNodeName(name string) bool {
	if name == "" || len(name) > 63 || name[0] == '-' || name[len(name)-1] == '-' {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// NodeName is the node's name in a member's id, which is NAME.RANDOM.
func NodeName(id raft.ServerID) string {
	name, _, _ := strings.Cut(string(id), ".")
	return name
}

// NodesOf are the names of all nodes that a certificate is good for. `bivouac tls issue` makes it
// good for one.
func NodesOf(certificate *x509.Certificate) (names []string) {
	for _, name := range certificate.DNSNames {
		if node, ok := strings.CutSuffix(name, nodeDomain); ok {
			names = append(names, node)
		}
	}
	return names
}

// nodeOf gives the node name a certificate was issued for.
func nodeOf(certificate *x509.Certificate) (string, error) {
	for _, name := range certificate.DNSNames {
		if node, ok := strings.CutSuffix(name, nodeDomain); ok && ValidNodeName(node) {
			return node, nil
		}
	}
	return "", fmt.Errorf("certificate %q names no node: it needs a DNS name <node>%s", certificate.Subject.CommonName,
		nodeDomain)
}
