package copies

import (
	// The stores that a URL can name: file and s3.
	_ "gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/s3blob"
)
