package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// recognised is the part of a licence's text, in percent, that must be known. It is what
// pkg.go.dev asks for.
const recognised = 75

// rootsModule is where the certificates of the image come from.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// module is a module that is in a program of the release, or in the image, or an npm package that is
// in the web page.
type module struct {
	path, version string
	npm           bool
	// ids are the SPDX identifiers of its licences, sorted.
	ids []string
	// texts are the licence files.
	texts []string
}

// licences writes the files "copyright" (all licence texts) and "spdx" to dir. A module whose
// licence is not recognised is an error.
func (r release) licences(ctx context.Context, dir string) error {
	modules, err := r.modules(ctx)
	if err != nil {
		return err
	}
	own, err := os.ReadFile(filepath.Join(r.source.root, "LICENSE"))
	if err != nil {
		return err
	}
	packages, texts, err := r.pagePackages()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "copyright"), append(copyright(own, modules), texts...), 0o600); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := r.writeSPDX(&out, append(modules, packages...)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "spdx"), out.Bytes(), 0o600)
}

// modules reads what the linker noted in the programs: what is in them, and not what go.mod
// allows. Go's library comes first.
func (r release) modules(ctx context.Context) ([]module, error) {
	found := map[string]string{}
	var goVersion string
	for _, name := range programNames() {
		info, err := buildinfo.ReadFile(filepath.Join(r.programs, name))
		if err != nil {
			return nil, err
		}
		goVersion = info.GoVersion
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			found[m.Path] = m.Version
		}
	}
	here := filepath.Join(r.source.root, "deploy", "release")
	version, err := goOutput(ctx, here, "list", "-m", "-f", "{{.Version}}", rootsModule)
	if err != nil {
		return nil, err
	}
	found[rootsModule] = strings.TrimSpace(version)

	goroot, err := goOutput(ctx, r.source.root, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	std := module{path: "std", version: goVersion}
	if err := std.readLicences(strings.TrimSpace(goroot)); err != nil {
		return nil, err
	}
	folders, err := folders(ctx, here, found)
	if err != nil {
		return nil, err
	}
	modules := []module{std}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		m := module{path: path, version: found[path]}
		if err := m.readLicences(folders[path]); err != nil {
			return nil, err
		}
		modules = append(modules, m)
	}
	return modules, nil
}

// pagePackages are the npm packages of the web page, and the texts of their licences.
func (r release) pagePackages() (packages []module, texts []byte, err error) {
	b, err := os.ReadFile(filepath.Join(r.page, "manifest.json"))
	if err != nil {
		return nil, nil, err
	}
	var manifest struct {
		Packages []struct{ Name, Version, Licence string }
	}
	if err := json.Unmarshal(b, &manifest); err != nil {
		return nil, nil, err
	}
	for _, p := range manifest.Packages {
		packages = append(packages, module{path: p.Name, version: p.Version, npm: true, ids: []string{p.Licence}})
	}
	texts, err = os.ReadFile(filepath.Join(r.page, "LICENSES.txt"))
	return packages, append([]byte("\nThe web page is made of these npm packages.\n\n"), texts...), err
}

// folders returns where modules lie in the module cache. What is there already is not downloaded.
func folders(ctx context.Context, dir string, modules map[string]string) (map[string]string, error) {
	args := []string{"mod", "download", "-json"}
	for path, version := range modules {
		args = append(args, path+"@"+version)
	}
	out, err := goOutput(ctx, dir, args...)
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var m struct{ Path, Dir, Error string }
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			return dirs, nil
		}
		if err != nil {
			return nil, err
		}
		if m.Error != "" {
			return nil, errors.New(m.Error)
		}
		dirs[m.Path] = m.Dir
	}
}

func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args[:2], " "), err, stderr.String())
	}
	return string(out), nil
}

// readLicences reads the licence files in a module's root.
func (m *module) readLicences(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	licence := regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)([._-].*)?$`)
	for _, e := range entries {
		if e.IsDir() || !licence.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		m.texts = append(m.texts, string(text))
		if strings.HasPrefix(strings.ToLower(e.Name()), "notice") {
			continue
		}
		cover := licensecheck.Scan(text)
		if cover.Percent < recognised {
			return fmt.Errorf("%s %s: %s is no licence that is known (%.0f %% of it is recognised)", m.path, m.version,
				e.Name(), cover.Percent)
		}
		for _, match := range cover.Match {
			if !match.IsURL && !slices.Contains(m.ids, match.ID) {
				m.ids = append(m.ids, match.ID)
			}
		}
	}
	if len(m.ids) == 0 {
		return fmt.Errorf("%s %s: no licence file in %s", m.path, m.version, dir)
	}
	slices.Sort(m.ids)
	return nil
}

// copyright is all licence texts, each once, with what it is for.
func copyright(own []byte, modules []module) []byte {
	type text struct {
		body string
		of   []string
	}
	var texts []*text
	byBody := map[string]*text{}
	for _, m := range modules {
		for _, body := range m.texts {
			t := byBody[body]
			if t == nil {
				t = &text{body: body}
				byBody[body] = t
				texts = append(texts, t)
			}
			t.of = append(t.of, m.path+" "+m.version+" ("+strings.Join(m.ids, ", ")+")")
		}
	}
	slices.SortStableFunc(texts, func(a, b *text) int { return cmp.Compare(a.of[0], b.of[0]) })
	var out bytes.Buffer
	line := strings.Repeat("=", 80)
	fmt.Fprintf(&out,
		"Bivouac has the licence below. The programs contain the modules that follow it, each\nwith its own.\n\n%s\n", own)
	for _, t := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n%s\n\n%s\n", line, strings.Join(t.of, "\n"), line, strings.TrimRight(t.body, "\n"))
	}
	return out.Bytes()
}
