package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/places"
)

// Bounds of the metrics' own listener, which serves a few scrapers.
const (
	metricsConnections, metricsShare = 64, 16
	// metricsInFlight bounds the answers in the making, which take CPU; more get 503.
	metricsInFlight = 8
	metricsHeader   = 8 << 10
	metricsDrain    = time.Second
)

// RunMetrics serves GET /metrics and nothing else on a listener of its own, until ctx ends. With
// Config.OwnMetrics the API's listener has it no more.
func (s *Server) RunMetrics(ctx context.Context, l net.Listener) error {
	few := places.Limits{Total: metricsConnections, Each: metricsShare}
	conns := limits.NewConnections(few, true, func(string) bool { return false }, s.metrics.conns())
	routes := http.NewServeMux()
	routes.HandleFunc("GET /metrics", s.serveMetrics)
	server := &http.Server{
		ConnState: conns.Note, ConnContext: limits.ConnContext, Handler: routes,
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout, ReadTimeout: s.cfg.ReadHeaderTimeout,
		WriteTimeout: s.cfg.WriteTimeout, IdleTimeout: s.cfg.IdleTimeout, MaxHeaderBytes: metricsHeader,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(conns.Listen(l)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving metrics on %s: %w", l.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		conns.CloseSilent()
		last, cancel := context.WithTimeout(context.Background(), metricsDrain)
		defer cancel()
		if server.Shutdown(last) != nil {
			_ = server.Close() // a scraper that reads slowly is cut off
		}
		return nil
	})
	err := group.Wait()
	conns.Wait()
	return err
}
