package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The image's user. Nothing else is in its user database, and no machine has it by default.
const imageUser = 65532

// The repositories of the images, as Docker names them once they are loaded.
const (
	imageName        = "bivouac"
	sandboxImageName = "bivouac/sandbox-agent"
)

// container is an image of a release. file begins the name of its archive.
type container struct {
	repository, title, file string
	layer                   v1.Layer
	config                  v1.Config
}

// image writes the image of a node. There is nothing in it to run but the programs.
func (r release) image(files []file, tmp string) error {
	layer, err := r.layer(files)
	if err != nil {
		return err
	}
	return r.oci(container{
		repository: imageName, title: "Bivouac", file: "bivouac", layer: layer,
		config: v1.Config{
			User:         "65532:65532",
			Entrypoint:   []string{"/usr/bin/bivouac"},
			Cmd:          []string{"server", "--config", "/etc/bivouac/node.hcl"},
			Env:          []string{"PATH=/usr/bin"},
			WorkingDir:   "/",
			ExposedPorts: map[string]struct{}{"8440/tcp": {}, "8441/tcp": {}},
			Volumes:      map[string]struct{}{"/var/lib/bivouac": {}},
		},
	}, tmp)
}

// sandboxImage writes the image of sandboxes that deploy/docker/Dockerfile makes: the agent server
// without a model, and the licences of what is in it.
func (r release) sandboxImage(files []file, tmp string) error {
	var buf bytes.Buffer
	out := tar.NewWriter(&buf)
	made := map[string]bool{}
	list := []file{{path: "sandbox-agent", source: filepath.Join(r.programs, "sandbox-agent"), mode: 0o755}}
	for _, f := range files {
		if f.path == "usr/share/doc/bivouac/copyright" {
			list = append(list, f)
		}
	}
	for _, f := range list {
		err := r.parents(out, f.path, made)
		if err == nil {
			err = addFile(out, f, f.path, r.source.time)
		}
		if err != nil {
			return err
		}
	}
	layer, err := compressed(out, &buf)
	if err != nil {
		return err
	}
	return r.oci(container{
		repository: sandboxImageName, title: "Bivouac's agent server", file: "bivouac-sandbox-agent", layer: layer,
		config: v1.Config{Entrypoint: []string{"/sandbox-agent"}},
	}, tmp)
}

// oci writes an OCI image layout in a tar: `docker load`, `skopeo copy oci-archive:` and `ctr image
// import` read it.
func (r release) oci(c container, tmp string) error {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(img, mutate.Addendum{
		Layer: c.layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: r.source.time}, CreatedBy: "bivouac.dev/bivouac/deploy/release"},
	})
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", r.arch, v1.Time{Time: r.source.time}
	config.Config = c.config
	config.Config.Labels = map[string]string{
		"org.opencontainers.image.title":    c.title,
		"org.opencontainers.image.version":  r.source.version,
		"org.opencontainers.image.revision": r.source.revision,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return err
	}
	dir := filepath.Join(tmp, "oci-"+c.file)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	err = path.AppendImage(img, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.imageTag(),
	}),
		layout.WithPlatform(v1.Platform{OS: "linux", Architecture: r.arch}))
	if err != nil {
		return err
	}
	if err := r.dockerManifest(c, img, dir); err != nil {
		return err
	}
	return r.write(c.file+"-"+r.source.version+"-linux-"+r.arch+".oci.tar", func(w io.Writer) error {
		return writeTree(w, dir, r)
	})
}

// imageTag is the version with what a tag may hold.
func (r release) imageTag() string {
	return strings.NewReplacer("~", "-", "+", "-").Replace(r.source.version)
}

// dockerManifest writes what engines older than Docker 25 read in place of index.json.
func (r release) dockerManifest(c container, img v1.Image, dir string) error {
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	entry := tarball.Descriptor{Config: blob(m.Config.Digest), RepoTags: []string{c.repository + ":" + r.imageTag()}}
	for _, l := range m.Layers {
		entry.Layers = append(entry.Layers, blob(l.Digest))
	}
	b, err := json.Marshal(tarball.Manifest{entry})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), b, 0o600)
}

// layer is the one layer of the image: the programs, the files of the packages that make sense in
// it, certificates of authorities and a user.
func (r release) layer(list []file) (v1.Layer, error) {
	var buf bytes.Buffer
	out := tar.NewWriter(&buf)
	list = within(list, "usr/bin", "usr/share/bivouac", "usr/share/doc/bivouac")
	made := map[string]bool{}
	for _, f := range list {
		if err := r.parents(out, f.path, made); err != nil {
			return nil, err
		}
		if err := addFile(out, f, f.path, r.source.time); err != nil {
			return nil, err
		}
	}
	for _, f := range []struct{ path, body string }{
		{"etc/group", "root:x:0:\nbivouac:x:65532:\n"},
		{"etc/passwd", "root:x:0:0:root:/:/sbin/nologin\nbivouac:x:65532:65532:Bivouac:/var/lib/bivouac:/sbin/nologin\n"},
		{"etc/ssl/certs/ca-certificates.crt", authorities()},
	} {
		if err := r.parents(out, f.path, made); err != nil {
			return nil, err
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg,
			Name:     f.path,
			Mode:     0o644,
			Size:     int64(len(f.body)),
			ModTime:  r.source.time,
			Format:   tar.FormatPAX,
		}
		if err := out.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(out, f.body); err != nil {
			return nil, err
		}
	}
	for _, d := range []*tar.Header{
		{Name: "etc/bivouac/", Mode: 0o755},
		{Name: "tmp/", Mode: 0o1777},
		{Name: "var/lib/bivouac/", Mode: 0o700, Uid: imageUser, Gid: imageUser},
	} {
		if err := r.parents(out, strings.TrimSuffix(d.Name, "/"), made); err != nil {
			return nil, err
		}
		d.Typeflag, d.ModTime, d.Format = tar.TypeDir, r.source.time, tar.FormatPAX
		if err := out.WriteHeader(d); err != nil {
			return nil, err
		}
	}
	return compressed(out, &buf)
}

// compressed ends the tar of a layer.
func compressed(out *tar.Writer, buf *bytes.Buffer) (v1.Layer, error) {
	if err := out.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// parents adds the folders above a path, each once.
func (r release) parents(out *tar.Writer, path string, made map[string]bool) error {
	for i, c := range path {
		if c != '/' || made[path[:i]] {
			continue
		}
		made[path[:i]] = true
		h := &tar.Header{
			Typeflag: tar.TypeDir,
			Name:     path[:i] + "/",
			Mode:     0o755,
			ModTime:  r.source.time,
			Format:   tar.FormatPAX,
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
	}
	return nil
}

// authorities are Mozilla's, from a pinned module and not from this machine. A root that is
// trusted with conditions only is left out: a PEM file can't hold them.
func authorities() string {
	var out strings.Builder
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.String()
}

// writeTree writes a folder as a tar, sorted by name.
func writeTree(w io.Writer, dir string, r release) error {
	var names []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	out := tar.NewWriter(w)
	for _, name := range names {
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		f := file{source: name, mode: 0o644}
		if err := addFile(out, f, filepath.ToSlash(rel), r.source.time); err != nil {
			return err
		}
	}
	return out.Close()
}
