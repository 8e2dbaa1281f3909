package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	redact "bivouac.dev/bivouac/httpapi/decode"
)

// observer answers what operators ask about a node: cluster.Config.Observe.
type observer struct {
	feed     *logFeed
	registry *prometheus.Registry
	// config is the node's configuration as JSON, without secrets; nil in a development cluster.
	config []byte
}

func (o *observer) observe(ctx context.Context, q cluster.Observation) ([]byte, error) {
	switch q.Kind {
	case cluster.ObserveLog:
		return o.feed.follow(ctx, q.Session, q.Level, q.Format)
	case cluster.ObserveProfile:
		return profile(ctx, q.Name, q.Seconds)
	case cluster.ObserveMetrics:
		return o.metrics()
	case cluster.ObserveConfig:
		if o.config == nil {
			return nil, fsm.Errorf(fsm.CodeNotFound, "a development cluster has no configuration file")
		}
		return o.config, nil
	}
	return nil, fsm.Errorf(fsm.CodeNotFound, "this node does not know %q", q.Kind)
}

// profile takes a profile in pprof's format, of goroutines as a text.
func profile(ctx context.Context, name string, seconds int) ([]byte, error) {
	var b bytes.Buffer
	if name == "profile" {
		if err := pprof.StartCPUProfile(&b); err != nil {
			return nil, fsm.Errorf(fsm.CodeLimit, "a CPU profile is being taken already")
		}
		timer := time.NewTimer(time.Duration(seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		pprof.StopCPUProfile()
		return b.Bytes(), ctx.Err()
	}
	p := pprof.Lookup(name)
	if p == nil {
		return nil, fsm.Errorf(fsm.CodeNotFound, "there is no profile %q", name)
	}
	debug := 0
	if name == "goroutine" {
		debug = 1 // stacks without the values of arguments
	}
	err := p.WriteTo(&b, debug)
	return b.Bytes(), err
}

func (o *observer) metrics() ([]byte, error) {
	families, err := o.registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("gathering metrics: %w", err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// withoutSecrets renders a configuration as JSON. A text whose name says that it is a credential is
// masked, unless it is the name of a file; credentials in other texts are too.
func withoutSecrets(c Config) ([]byte, error) {
	return json.MarshalIndent(shown("", reflect.ValueOf(c)), "", "  ")
}

func shown(name string, v reflect.Value) any {
	if d, is := v.Interface().(time.Duration); is {
		return d.String()
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return shown(name, v.Elem())
	case reflect.Struct:
		members := map[string]any{}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				members[f.Name] = shown(f.Name, v.Field(i))
			}
		}
		return members
	case reflect.Slice, reflect.Array:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = shown(name, v.Index(i))
		}
		return list
	case reflect.Map:
		members := map[string]any{}
		for _, k := range v.MapKeys() {
			members[fmt.Sprint(k)] = shown(fmt.Sprint(k), v.MapIndex(k))
		}
		return members
	case reflect.String:
		if isCredential(name) && v.String() != "" {
			return "****"
		}
		return redact.Redact(v.String())
	}
	return v.Interface()
}

// isCredential reports whether a member holds a credential itself.
func isCredential(name string) bool {
	name = strings.ToLower(name)
	if strings.HasSuffix(name, "file") {
		return false
	}
	for _, word := range []string{"secret", "token", "password", "roleid", "key", "credential"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}
