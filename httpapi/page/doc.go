// Package page serves the web page of a node: the published build of Agent Canvas, as ops/page
// assembles it into a folder. A manifest in the folder lists every file with its type, size and
// hash, the paths that the page itself knows, and the hashes of the scripts in index.html. What the
// manifest does not list is not there: no request names a file of the machine.
package page
