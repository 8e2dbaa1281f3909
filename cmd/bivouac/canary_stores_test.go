package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
)

// inNomad searches what Nomad has of the sandboxes, and its files but the sandboxes' own.
func (s *canarySearch) inNomad(t *testing.T) {
	ask := func(path string) (raw json.RawMessage) {
		err := s.nomad.Do(t.Context(), http.MethodGet, path, nil, &raw)
		var status *local.StatusError
		if err != nil && (!errors.As(err, &status) || status.Status != http.StatusNotFound) {
			t.Fatal(err)
		}
		return raw
	}
	answers := map[string][]string{}
	looked := map[string]int{}
	look := func(kind, path string) {
		raw := ask(path)
		if len(raw) > 0 {
			looked[kind]++
		}
		for _, v := range s.leaks(raw) {
			answers[kind] = append(answers[kind], v+" in "+path)
		}
	}
	jobs := s.jobs(t)
	for _, job := range jobs {
		id := url.PathEscape(job.ID)
		look("jobs", "job/"+id)
		look("jobs' versions", "job/"+id+"/versions")
		look("evaluations", "job/"+id+"/evaluations")
		var allocs []struct{ ID string }
		if err := json.Unmarshal(ask("job/"+id+"/allocations"), &allocs); err != nil {
			t.Fatal(err)
		}
		for _, a := range allocs {
			look("allocations", "allocation/"+a.ID)
		}
	}
	var vars []struct{ Path string }
	if err := json.Unmarshal(ask("vars"), &vars); err != nil {
		t.Fatal(err)
	}
	for _, v := range vars {
		look("variables", "var/"+v.Path)
	}
	look("volumes", "volumes?type=host")
	for _, kind := range []string{"jobs", "jobs' versions", "evaluations", "allocations", "variables", "volumes"} {
		s.found(t, "Nomad: "+kind, looked[kind], answers[kind])
	}
	if list, err := s.nodes[0].sandboxes(); err != nil || len(list) == 0 || len(jobs) <= len(list) {
		t.Errorf("%d jobs were searched, beside %d sandboxes of the operator: %v", len(jobs), len(list), err)
	}
	own := 0
	files, leaks := s.files(t, s.nomad.Dir, func(path string) bool {
		if ofTheSandbox(path) {
			own++
			return false
		}
		return true
	})
	s.found(t, fmt.Sprintf("Nomad: log and files (without %d of sandboxes)", own), files, leaks)
	s.clientState(t)
}

// clientState is the file in which Nomad's client keeps the environment of its tasks: the keys of
// sandboxes may be in it and nothing else, and no other user may read it.
const clientState = "client/state.db"

// ofTheSandbox reports whether a file of Nomad's is a sandbox's own, or has its environment.
func ofTheSandbox(path string) bool {
	return strings.Contains(path, "/alloc/") || strings.Contains(path, "/host_volumes/") ||
		strings.HasSuffix(path, clientState)
}

func (s *canarySearch) clientState(t *testing.T) {
	path := filepath.Join(s.nomad.Dir, "data", clientState)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	list := s.leaks(raw)
	leaks := slices.DeleteFunc(slices.Clone(list), func(v string) bool { return strings.HasPrefix(v, keyOfASandbox) })
	s.found(t, fmt.Sprintf("Nomad: %s, with the environments (%d keys of sandboxes)", clientState, len(list)-len(leaks)),
		1, leaks)
	shut := false // for others, the file or a folder of Nomad's above it
	for ; len(path) > len(s.nomad.Dir); path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		shut = shut || info.Mode().Perm()&0o007 == 0
	}
	if !shut {
		t.Errorf("others can read %s", clientState)
	}
}

// inVault reads every entry of every key-value store: the canaries are below the prefix and in the
// sandboxes' entries. Vault's files and its log have none.
func (s *canarySearch) inVault(t *testing.T) {
	var mounts struct {
		Data map[string]struct{ Type string }
	}
	if err := s.vault.Do(t.Context(), http.MethodGet, "sys/mounts", nil, &mounts); err != nil {
		t.Fatal(err)
	}
	inside, outside := 0, 0
	var leaks, kept []string
	for mount, m := range mounts.Data {
		if m.Type != "kv" {
			continue
		}
		s.entries(t, mount, "", func(path string, raw []byte) {
			list := s.leaks(raw)
			if mount == "secret/" && (strings.HasPrefix(path, "bivouac/") || strings.HasPrefix(path, "default/sandbox-")) {
				inside, kept = inside+1, append(kept, list...)
				return
			}
			outside++
			for _, v := range list {
				leaks = append(leaks, v+" in "+mount+path)
			}
		})
	}
	s.found(t, "Vault: entries within our paths, which hold the canaries", inside, nil)
	t.Logf("not in Vault, but refused, hashed or never stored: %s", strings.Join(s.c.without(kept).kinds(), ", "))
	s.found(t, fmt.Sprintf("Vault: mounts, with %d entries elsewhere", outside), len(mounts.Data), leaks)
	files, leaks := s.files(t, s.vault.Dir, func(string) bool { return true })
	s.found(t, "Vault: log and files", files, leaks)
}

// entries calls each with all that is below dir.
func (s *canarySearch) entries(t *testing.T, mount, dir string, each func(path string, raw []byte)) {
	t.Helper()
	var list struct{ Data struct{ Keys []string } }
	err := s.vault.Do(t.Context(), http.MethodGet, mount+"metadata/"+dir+"?list=true", nil, &list)
	var status *local.StatusError
	if err != nil && (!errors.As(err, &status) || status.Status != http.StatusNotFound) {
		t.Fatal(err)
	}
	for _, name := range list.Data.Keys {
		if strings.HasSuffix(name, "/") {
			s.entries(t, mount, dir+name, each)
			continue
		}
		var raw json.RawMessage
		if err := s.vault.Do(t.Context(), http.MethodGet, mount+"data/"+dir+name, nil, &raw); err != nil &&
			!errors.As(err, &status) {
			t.Fatal(err)
		}
		each(dir+name, raw)
	}
}

// processes searches the command lines of all processes, which every user of a machine can read.
func (s *canarySearch) processes(t *testing.T) {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	var leaks []string
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil || len(raw) == 0 {
			continue
		}
		looked++
		leaks = append(leaks, s.leaks(raw)...)
	}
	s.found(t, "command lines of processes", looked, leaks)
}
