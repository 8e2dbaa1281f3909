package main

import (
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// writeSPDX writes the list of modules and licences, SPDX 2.3 as JSON.
func (r release) writeSPDX(w io.Writer, modules []module) error {
	name := "bivouac-" + r.source.version + "-linux-" + r.arch
	own := r.spdxPackage(module{path: "bivouac.dev/bivouac", version: r.source.version, ids: []string{"Apache-2.0"}})
	own.PackageSupplier = &common.Supplier{Supplier: r.maintainer, SupplierType: "Organization"}
	own.PackageSourceInfo = "git revision " + r.source.revision
	own.PrimaryPackagePurpose = "APPLICATION"
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      name,
		DocumentNamespace: "https://bivouac.dev/spdx/" + name + "-" + r.source.revision,
		CreationInfo: &spdx.CreationInfo{
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "bivouac.dev/bivouac/deploy/release"}},
			Created:  r.source.time.UTC().Format(time.RFC3339),
		},
		Packages:      []*spdx.Package{own},
		Relationships: []*spdx.Relationship{relation("DOCUMENT", common.TypeRelationshipDescribe, own.PackageSPDXIdentifier)},
	}
	for _, m := range modules {
		p := r.spdxPackage(m)
		p.PrimaryPackagePurpose = "LIBRARY"
		if m.npm {
			p.PackageComment = "In the web page; in no program."
		}
		if m.path == rootsModule {
			p.PackageComment = "The certificates of authorities in the image; in no program."
		}
		doc.Packages = append(doc.Packages, p)
		doc.Relationships = append(doc.Relationships,
			relation(own.PackageSPDXIdentifier, common.TypeRelationshipContains, p.PackageSPDXIdentifier))
	}
	return json.Write(doc, w, json.Indent("  "))
}

func (r release) spdxPackage(m module) *spdx.Package {
	licence := strings.Join(m.ids, " AND ")
	return &spdx.Package{
		PackageName: m.path, PackageVersion: m.version,
		PackageSPDXIdentifier: common.ElementID(
			"Package-" + regexp.MustCompile(`[^A-Za-z0-9.-]`).ReplaceAllString(m.path, "-"),
		),
		PackageDownloadLocation: "NOASSERTION", PackageCopyrightText: "NOASSERTION",
		PackageLicenseConcluded: licence, PackageLicenseDeclared: licence,
		IsFilesAnalyzedTagPresent: true,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL,
			Locator: purl(m),
		}},
	}
}

// purl is a module as scanners of vulnerabilities name it.
func purl(m module) string {
	path, version := m.path, m.version
	if m.npm {
		return "pkg:npm/" + strings.Replace(path, "@", "%40", 1) + "@" + version
	}
	if path == "std" {
		path, version = "stdlib", strings.TrimPrefix(version, "go")
	}
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

func relation(from common.ElementID, kind string, to common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{
		RefA: common.MakeDocElementID("", string(from)), RefB: common.MakeDocElementID("", string(to)), Relationship: kind,
	}
}
