package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/scheduler/durable"
)

// certificatesPause is how often a node looks at the dates of its certificates.
const certificatesPause = time.Minute

// The certificates that a node is configured with: the label "name" of their metrics.
const (
	certificatePeer   = "peer"
	certificatePeerCA = "peer_ca"
	certificateHTTP   = "http"
)

// certificateOptions say how a node comes by its certificates.
type certificateOptions struct {
	// issue makes the node's next certificate; nil where an operator does.
	issue peernet.Issuer
	// http is the API's certificate, nil without HTTPS.
	http *fileCertificate
}

// datedCertificate is a certificate of the node that expires.
type datedCertificate struct {
	name, path string
	expires    func() time.Time
	// remedy says what the operator does.
	remedy string

	// warned is when it was last logged, as expired or not.
	warned  time.Time
	expired bool
}

// certificates watches the dates of a node's certificates, and renews the peer port's.
type certificates struct {
	dated   []*datedCertificate
	renewal *peernet.Renewal // nil where an operator renews
	log     *slog.Logger
}

// newCertificates registers the metrics.
func newCertificates(
	o certificateOptions,
	creds *peernet.Credentials,
	files peernet.TLSFiles,
	log *slog.Logger,
	registry prometheus.Registerer,
) *certificates {
	c := &certificates{log: log}
	factory := promauto.With(registry)
	remedy := "renew it with \"bivouac tls renew\" and copy both files to the node; it reads them without a restart"
	if o.issue != nil {
		remedy = "the node could not renew it: see what it logs about that, or " + remedy
	}
	c.dated = []*datedCertificate{
		{
			name:    certificatePeer,
			path:    files.CertFile,
			remedy:  remedy,
			expires: func() time.Time { return creds.Leaf().NotAfter },
		},
		{
			name:    certificatePeerCA,
			path:    files.CAFile,
			remedy:  "replace the CA on all nodes, step by step",
			expires: creds.CAExpiry,
		},
	}
	if o.http != nil {
		c.dated = append(c.dated, &datedCertificate{
			name: certificateHTTP, path: o.http.certFile, expires: o.http.expires,
			remedy: "put a new certificate and its key there; the node reads them without a restart",
		})
	}
	for _, d := range c.dated {
		factory.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "bivouac_certificate_expiry_timestamp_seconds",
			Help:        "When a certificate of the node expires, in Unix seconds.",
			ConstLabels: prometheus.Labels{"name": d.name},
		}, func() float64 { return float64(d.expires().Unix()) })
	}
	if o.issue != nil {
		renewals := factory.NewCounterVec(prometheus.CounterOpts{
			Name: "bivouac_certificate_renewals_total", Help: "Renewals of the peer certificate by this node: ok, failed.",
		}, []string{"result"})
		renewals.WithLabelValues("ok")
		renewals.WithLabelValues("failed")
		last := factory.NewGauge(prometheus.GaugeOpts{
			Name: "bivouac_certificate_last_renewal_timestamp_seconds",
			Help: "When this process last renewed the peer certificate, in Unix seconds; 0 for not yet.",
		})
		c.renewal = &peernet.Renewal{Credentials: creds, Issue: o.issue, Replace: durable.Replace, Logger: log,
			Done: func(err error) {
				if err != nil {
					renewals.WithLabelValues("failed").Inc()
					return
				}
				renewals.WithLabelValues("ok").Inc()
				last.SetToCurrentTime()
			}}
	}
	return c
}

// run warns and renews until ctx ends.
func (c *certificates) run(ctx context.Context) error {
	renewed := make(chan error, 1)
	if c.renewal == nil {
		renewed <- nil
	} else {
		go func() { renewed <- c.renewal.Run(ctx) }()
	}
	tick := time.NewTicker(certificatesPause)
	defer tick.Stop()
	for {
		c.warn(time.Now())
		select {
		case <-ctx.Done():
			return <-renewed
		case <-tick.C:
		}
	}
}

// expiredNames are the certificates that have expired, by the names of their metrics.
func (c *certificates) expiredNames(now time.Time) (names []string) {
	for _, d := range c.dated {
		if !now.Before(d.expires()) {
			names = append(names, d.name)
		}
	}
	return names
}

// warn logs each certificate that has expired or will soon: at once, and then once a day.
func (c *certificates) warn(now time.Time) {
	for _, d := range c.dated {
		end := d.expires()
		expired := !now.Before(end)
		switch {
		case end.Sub(now) > expiryWarning:
			d.warned = time.Time{}
			continue
		case !d.warned.IsZero() && now.Sub(d.warned) < day && expired == d.expired:
			continue
		}
		d.warned, d.expired = now, expired
		attrs := []any{"name", d.name, "path", d.path, "expires", end, "days_left", daysLeft(end, now), "remedy", d.remedy}
		if expired {
			c.log.Error("certificate has expired: new connections with it are refused (bivouac runbook certificates)", attrs...)
		} else {
			c.log.Warn("certificate expires soon (bivouac runbook certificates)", attrs...)
		}
	}
}
