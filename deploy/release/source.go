package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// source is the tree that a release is made of.
type source struct {
	// root is the tree's root, an absolute path.
	root string
	// version is valid in a Debian and an RPM package.
	version string
	// revision is the commit.
	revision string
	// time stands in every file of the release.
	time time.Time
}

// readSource asks git which tree this is. SOURCE_DATE_EPOCH overrides the commit's time.
func readSource(ctx context.Context, root string) (source, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return source{}, err
	}
	git := func(args ...string) string {
		if err != nil {
			return ""
		}
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = root
		var b []byte
		if b, err = cmd.Output(); err != nil {
			err = fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(b))
	}
	s := source{root: root, revision: git("rev-parse", "HEAD")}
	seconds := git("show", "--no-patch", "--format=%ct", "HEAD")
	describe := git("describe", "--tags", "--always", "--dirty", "--match", "v[0-9]*")
	if err != nil {
		return source{}, err
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return source{}, fmt.Errorf("the commit's time: %w", err)
	}
	committed := time.Unix(at, 0).UTC()
	s.version = packageVersion(describe, committed)
	s.time = committed
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		at, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return source{}, fmt.Errorf("SOURCE_DATE_EPOCH: %q is not a number of seconds", epoch)
		}
		s.time = time.Unix(at, 0).UTC()
	}
	return s, nil
}

// packageVersion turns the output of `git describe` into a version that dpkg and rpm accept and
// order as the commits are ordered: a prerelease (~) is older than its release, a commit after a
// release (+) is newer. Without a tag the commit's time orders.
func packageVersion(describe string, committed time.Time) string {
	describe, dirty := strings.CutSuffix(describe, "-dirty")
	tag := regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-([0-9A-Za-z.]+))?(?:-(\d+)-g([0-9a-f]+))?$`)
	version := "0.0.0~git" + committed.UTC().Format("20060102150405") + "." + describe
	if m := tag.FindStringSubmatch(describe); m != nil {
		version = m[1]
		if m[2] != "" {
			version += "~" + m[2]
		}
		if m[3] != "" {
			version += "+" + m[3] + ".g" + m[4]
		}
	}
	if dirty {
		// Two builds of a changed tree are not the same.
		version += "+dirty"
	}
	return version
}
