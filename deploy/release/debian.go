package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// overrides says why the package keeps what lintian calls errors.
const overrides = `# Go programs without C: they run on every Linux, whatever its libc.
bivouac: statically-linked-binary [usr/bin/bivouac]
bivouac: statically-linked-binary [usr/bin/sandbox-agent]
# The same file is in the rpm and the archive, where there is no common-licenses.
bivouac: copyright-file-contains-full-apache-2-license
bivouac: copyright-not-using-common-license-for-apache2
# Who makes the packages says who maintains them: -maintainer.
bivouac: bogus-mail-host Maintainer bivouac@localhost
bivouac: bogus-mail-host-in-debian-changelog *
`

// debian writes the files that only Debian's package has: "changelog", which leads to CHANGELOG.md,
// and "overrides".
func (r release) debian(dir string) error {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(zip, "bivouac (%s) unstable; urgency=medium\n\n"+
		"  * See /usr/share/doc/bivouac/CHANGELOG.md.\n\n -- %s  %s\n",
		r.source.version, r.maintainer, r.source.time.UTC().Format(time.RFC1123Z))
	return errors.Join(err, zip.Close(),
		os.WriteFile(filepath.Join(dir, "changelog"), out.Bytes(), 0o600),
		os.WriteFile(filepath.Join(dir, "overrides"), []byte(overrides), 0o600))
}
