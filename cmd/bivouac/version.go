package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version is set by the linker only: the Makefile passes the output of `git describe`. A release
// has the commit behind it, after an "@".
var version = ""

// buildInfo identifies this build.
type buildInfo struct {
	// Version is the linker's value, else the module's version, else "devel".
	Version string `json:"version"`
	// Revision is the commit, with "+dirty" if the tree had changes, "" if the build did not
	// record it.
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// readBuildInfo reads the linker's value and the build information of the binary.
func readBuildInfo() buildInfo { return buildInfoOf(version) }

func buildInfoOf(linked string) buildInfo {
	version, revision, _ := strings.Cut(linked, "@")
	b := buildInfo{
		Version:  cmp.Or(version, "devel"),
		Revision: revision,
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; version == "" && v != "" && v != "(devel)" {
		b.Version = v
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && revision == "":
			b.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true" && revision == "":
			dirty = "+dirty"
		}
	}
	if b.Revision != "" {
		b.Revision += dirty
	}
	return b
}

func (p *program) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print which build this is",
		Example: "  bivouac version --json",
		RunE: func(*cobra.Command, []string) error {
			b := readBuildInfo()
			if asJSON {
				return json.NewEncoder(p.stdout).Encode(b)
			}
			_, err := fmt.Fprintf(p.stdout, "bivouac %s (%s, %s, %s)\n", b.Version, orDash(b.Revision), b.Go, b.Platform)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
