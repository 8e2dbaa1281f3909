package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// release is what is made for one architecture.
type release struct {
	source source
	// arch is the architecture as Go names it.
	arch string
	// programs is the folder with the programs, host one with those that run here.
	programs, host string
	// page is the folder of the web page.
	page string
	// out is the folder to write to.
	out        string
	maintainer string
}

// make writes the archive, the packages, the images and the list of modules. Files that are there
// are replaced.
func (r release) make(ctx context.Context) error {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "bivouac-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	files, err := r.files(ctx, tmp)
	if err != nil {
		return err
	}
	spdx, err := os.ReadFile(filepath.Join(tmp, "spdx"))
	if err != nil {
		return err
	}
	if err := r.write("bivouac-"+r.source.version+"-linux-"+r.arch+".spdx.json", func(w io.Writer) error {
		_, err := w.Write(spdx)
		return err
	}); err != nil {
		return err
	}
	if err := r.archive(of(files, "archive")); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	for _, format := range []string{"deb", "rpm"} {
		if err := r.pack(format, of(files, format)); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
	}
	if err := r.image(of(files, "image"), tmp); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := r.sandboxImage(of(files, "image"), tmp); err != nil {
		return fmt.Errorf("image of sandboxes: %w", err)
	}
	return nil
}

// files are all files of the release, sorted by path. The generated ones are written to tmp.
func (r release) files(ctx context.Context, tmp string) ([]file, error) {
	files, err := treeFiles(r.source.root)
	if err != nil {
		return nil, err
	}
	for _, name := range programNames() {
		files = append(files, file{path: "usr/bin/" + name, source: filepath.Join(r.programs, name), mode: 0o755})
	}
	page, err := pageFiles(r.page)
	if err != nil {
		return nil, fmt.Errorf("the web page, which make page makes where npm is there: %w", err)
	}
	files = append(files, page...)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		cmd := exec.CommandContext(ctx, filepath.Join(r.host, "bivouac"), "completion", shell)
		script, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("bivouac completion %s: %w", shell, err)
		}
		if err := os.WriteFile(filepath.Join(tmp, shell), script, 0o600); err != nil {
			return nil, err
		}
	}
	if err := writeReference(filepath.Join(r.source.root, "cmd/bivouac/doc.go"),
		filepath.Join(tmp, "configuration")); err != nil {
		return nil, fmt.Errorf("the reference of the configuration: %w", err)
	}
	if err := r.licences(ctx, tmp); err != nil {
		return nil, fmt.Errorf("licences: %w", err)
	}
	if err := r.debian(tmp); err != nil {
		return nil, fmt.Errorf("Debian's files: %w", err)
	}
	files = append(files, generatedFiles(tmp)...)
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	return files, nil
}

// writeReference writes the comment of cmd/bivouac, which `go doc` shows: a node's machine has no
// source.
func writeReference(from, to string) error {
	f, err := parser.ParseFile(token.NewFileSet(), from, nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		return err
	}
	var p doc.Package
	printer := p.Printer()
	printer.TextWidth = 100
	return os.WriteFile(to, printer.Text(p.Parser().Parse(f.Doc.Text())), 0o600)
}

// write writes one file of the release.
func (r release) write(name string, body func(io.Writer) error) error {
	f, err := os.OpenFile(filepath.Join(r.out, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if err := body(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// writeChecksums writes SHA256SUMS, for `sha256sum --check`, and lists the files.
func writeChecksums(dir string, list io.Writer) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums []byte
	for _, e := range entries {
		if e.Name() == "SHA256SUMS" {
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		h := sha256.New()
		size, err := io.Copy(h, f)
		f.Close()
		if err != nil {
			return err
		}
		sums = fmt.Appendf(sums, "%x  %s\n", h.Sum(nil), e.Name())
		fmt.Fprintf(list, "%9d %s\n", size, filepath.Join(dir, e.Name()))
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), sums, 0o644)
}
