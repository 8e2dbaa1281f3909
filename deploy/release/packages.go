package main

import (
	"io"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

const (
	summary     = "Highly available control plane for coding-agent sandboxes"
	description = `Three or more nodes serve one HTTP API and run each sandbox as a Nomad job.
Secret values are in Vault. Nothing is started at installation.`
)

// pack writes one package. No file in it is a conffile: /etc/bivouac is the operator's, and an
// upgrade neither asks nor overwrites.
func (r release) pack(format string, list []file) error {
	script := func(name string) string {
		return filepath.Join(r.source.root, "deploy", "release", "scripts", name+".sh")
	}
	info := &nfpm.Info{
		Name: "bivouac", Arch: r.arch, Platform: "linux",
		Version: r.source.version, VersionSchema: "none",
		Section: "admin", Priority: "optional", Maintainer: r.maintainer, Vendor: "Bivouac",
		Homepage: "https://bivouac.dev", License: "Apache-2.0", Description: summary + "\n" + description,
		MTime: r.source.time, DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			// Vault and Nomad are mostly reached by HTTPS.
			Recommends: []string{"ca-certificates"},
			Scripts: nfpm.Scripts{
				PreInstall: script("preinstall"), PostInstall: script("postinstall"),
				PreRemove: script("preremove"), PostRemove: script("postremove"),
			},
			Deb: nfpm.Deb{Predepends: []string{"passwd"}},
			RPM: nfpm.RPM{BuildHost: "bivouac", Packager: r.maintainer},
		},
	}
	if format == "rpm" {
		info.Release = "1"
		info.RPM.Summary, info.Description = summary, description
		info.Depends = []string{"/usr/sbin/useradd"}
	}
	for _, f := range list {
		info.Contents = append(info.Contents, &files.Content{
			Source: f.source, Destination: "/" + f.path,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: r.source.time},
		})
	}
	info.Contents = append(info.Contents, &files.Content{
		Destination: "/etc/bivouac", Type: files.TypeDir,
		FileInfo: &files.ContentFileInfo{Owner: "root", Group: "bivouac", Mode: 0o750, MTime: r.source.time},
	})
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	return r.write(packager.ConventionalFileName(info), func(w io.Writer) error {
		return packager.Package(info, w)
	})
}
