// Command alone is the baseline for Bivouac: hashicorp/raft by itself, with the log store,
// timers and settings of package cluster, loaded from within (POST /load) or through a minimal
// HTTP handler (POST /write). With -bytes it is an HTTP handler that returns the same bytes
// each time.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/julienschmidt/httprouter"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/ops/bench/peers/load"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "alone:", err)
		os.Exit(1)
	}
}

func run() error {
	d := cluster.DefaultConfig()
	o := options{product: d}
	var peers, bytes, address string
	flag.StringVar(&address, "http", "", "the address of the handlers")
	flag.StringVar(&bytes, "bytes", "", "return this file's content as JSON, and run no Raft")
	flag.IntVar(&o.me, "me", 0, "which of the peers this one is, from 0")
	flag.StringVar(&peers, "peers", "", "the Raft addresses of all, with commas")
	flag.StringVar(&o.dir, "dir", "", "the data directory")
	flag.StringVar(&o.store, "store", "wal", "wal, as package cluster opens it, or boltdb")
	flag.DurationVar(&o.heartbeat, "heartbeat", d.HeartbeatTimeout, "heartbeat timeout")
	flag.DurationVar(&o.election, "election", d.ElectionTimeout, "election timeout")
	flag.DurationVar(&o.lease, "lease", d.LeaderLeaseTimeout, "leader lease timeout")
	flag.Parse()
	o.peers = strings.Split(peers, ",")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	router := httprouter.New()
	if bytes != "" {
		content, err := os.ReadFile(bytes)
		if err != nil {
			return err
		}
		router.GET("/api/settings", func(w http.ResponseWriter, _ *http.Request, _ httprouter.Params) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(content) // the client is gone
		})
	} else {
		n, err := open(o)
		if err != nil {
			return err
		}
		defer n.close()
		router.POST("/write", n.write)
		router.POST("/load", n.load)
		router.GET("/status", n.status)
	}
	server := &http.Server{Addr: address, Handler: router, ReadHeaderTimeout: time.Minute}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

// write proposes the body to the log.
func (n *node) write(w http.ResponseWriter, r *http.Request, _ httprouter.Params) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = n.raft.Apply(body, 5*time.Second).Error()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, "{}\n")
}

// load proposes from within: ?clients=64&for=5s&warm=1s&bytes=512.
func (n *node) load(w http.ResponseWriter, r *http.Request, _ httprouter.Params) {
	q := r.URL.Query()
	var o load.Options
	var err error
	if o.Clients, err = strconv.Atoi(q.Get("clients")); err == nil {
		o.For, err = time.ParseDuration(q.Get("for"))
	}
	if err == nil {
		o.Warm, err = time.ParseDuration(q.Get("warm"))
	}
	size := 0
	if err == nil {
		size, err = strconv.Atoi(q.Get("bytes"))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	command := []byte(strings.Repeat("x", size))
	result, err := load.Run(r.Context(), o, func(context.Context, int, int) error {
		return n.raft.Apply(command, 5*time.Second).Error()
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_ = json.NewEncoder(w).Encode(result)
}

// status reports the leader and the term.
func (n *node) status(w http.ResponseWriter, _ *http.Request, _ httprouter.Params) {
	_, leader := n.raft.LeaderWithID()
	_ = json.NewEncoder(w).Encode(map[string]any{
		"state": n.raft.State().String(), "leader": leader, "term": n.raft.CurrentTerm(), "applied": n.raft.AppliedIndex(),
	})
}
